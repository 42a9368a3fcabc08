#!/usr/bin/env python3
"""Go programs run on kernel sockets, untouched, linked statically and dynamically; knetctl says so."""

import os
import socket
import subprocess

from harness import ROOT, SERVER, Lab, main, wait_for

PORT = 7001
SERVER_CODE = """
package main

%simport (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp4", os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	fmt.Println("listening")
	for n := 0; n < 3; n++ {
		peer, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		io.Copy(peer, peer)
		peer.Close()
	}
	other, err := net.Dial("tcp4", os.Args[2])
	if err != nil {
		panic(err)
	}
	fmt.Println("dialled", other.RemoteAddr())
}
"""
CGO = '// #include <unistd.h>\nimport "C"\n'


class Golang:
    def __init__(self):
        self.lab = Lab()
        environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": self.path("cache"), "GOFLAGS": ""}
        for name, cgo in (("static", False), ("dynamic", True)):
            source = self.path(f"{name}.go")
            with open(source, "w", encoding="ascii") as file:
                file.write(SERVER_CODE % (CGO if cgo else ""))
                if cgo:
                    file.write("\nvar mine = C.getpid()\n")
            subprocess.run(
                ["go", "build", "-o", self.path(name), source], check=True, env={**environment, "CGO_ENABLED": str(int(cgo))}, timeout=240
            )

    @property
    def processes(self):
        return self.lab.processes

    def path(self, name):
        return os.path.join(self.lab.work, name)

    def runs(self, name, said, reason):
        """It serves on loopback, dials a kernel listener, is refused the stack's address; both tools say why."""
        with self.lab.inside("s"):
            target = socket.create_server(("127.0.0.1", 0))
        there = f"127.0.0.1:{target.getsockname()[1]}"
        log = f"{name}.log"
        server = self.lab.start("server", self.path(name), f"0.0.0.0:{PORT}", there, log=log)

        def text():
            with open(os.path.join(self.lab.work, log), errors="replace", encoding="utf-8") as file:
                return file.read()

        wait_for("it listens", lambda: "listening" in text(), 15)
        kinds = (os.environ.get("KNET_BUILD", "release"), "debug")
        knetctl = next(filter(os.path.exists, (os.path.join(ROOT, "target", kind, "knetctl") for kind in kinds)))
        why = subprocess.run([knetctl, "why", str(server.pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        for size in (1, 1_460, 100_000):
            peer = self.lab.connect(PORT, 10.0, "127.0.0.1", end="s")
            peer.sendall(b"g" * size)
            peer.shutdown(1)
            assert len(peer.makefile("rb").read()) == size
            peer.close()
        server.wait(10)
        target.close()
        assert server.returncode == 0 and f"dialled {there}" in text(), text()
        assert said in text(), text()
        assert reason in why, why
        out = self.lab.shimmed(self.path(name), f"{SERVER}:{PORT}", there, check=False)
        assert "cannot assign requested address" in out, out


def linked_statically(golang):
    golang.runs("static", "is linked statically", "a Go program, linked statically")


def linked_dynamically(golang):
    golang.runs("dynamic", "is a Go program", "a Go program makes its system calls itself")


if __name__ == "__main__":
    main("golang", [linked_statically, linked_dynamically], Golang, lambda golang: golang.lab.close())
