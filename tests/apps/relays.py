#!/usr/bin/env python3
"""socat and netcat under the shim: listening, connecting, forking, half-closed, in front of programs and of other sockets."""

import hashlib
import os
import subprocess

from harness import CLIENT, SERVER, Lab, main, reached, served, together, wait_for
from origin import Origin, content

ORIGIN = 9000


class Relays:
    def __init__(self):
        self.lab = Lab()
        self.origin = Origin(self.lab, ORIGIN)
        self.big = os.path.join(self.lab.work, "big")
        with open(self.big, "wb") as file:
            file.write(content(10_000_000))

    @property
    def processes(self):
        return self.lab.processes

    def connect(self, port, address=SERVER):
        """To a program that is about to listen."""

        def peer():
            try:
                return self.lab.connect(port, 20.0, address)
            except OSError:
                return None

        return wait_for("it listens", peer, 15)

    def close(self):
        self.origin.close()
        self.lab.close()


def echo(relays, port, clients):
    relays.connect(port).close()

    def talk(n):
        peer = relays.lab.connect(port, 20.0)
        body = content(10_000 * n + 1)
        peer.sendall(body)
        peer.shutdown(1)
        assert peer.makefile("rb").read() == body, n
        peer.close()

    with served(relays.lab, clients):
        together(clients, talk)


def socat_in_front_of_a_program(relays):
    socat = relays.lab.start("server", "socat", f"TCP4-LISTEN:7001,bind={SERVER},fork,reuseaddr,backlog=64", "EXEC:cat", log="socat.log")
    echo(relays, 7001, 10)
    relays.lab.end(socat)


def socat_in_front_of_a_pipe(relays):
    socat = relays.lab.start("server", "socat", f"TCP4-LISTEN:7002,bind={SERVER},fork,reuseaddr,backlog=64", "PIPE", log="socat.log")
    echo(relays, 7002, 10)
    relays.lab.end(socat)


def socat_between_two_connections(relays):
    socat = relays.lab.start(
        "server", "socat", f"TCP4-LISTEN:7003,bind={SERVER},fork,reuseaddr,backlog=64", f"TCP4:{CLIENT}:{ORIGIN}", log="socat.log"
    )
    relays.connect(7003).close()

    def ask(n):
        peer = relays.lab.connect(7003, 20.0)
        peer.sendall(b"GET /size/%d HTTP/1.0\r\n\r\n" % (n * 100_000))
        assert peer.makefile("rb").read().partition(b"\r\n\r\n")[2] == content(n * 100_000), n
        peer.close()

    with served(relays.lab, 10), reached(relays.lab, 10):
        together(10, ask)
    relays.lab.end(socat)


def socat_of_one_connection(relays):
    """A file out of socat's standard input to the kernel, and back out of its standard output."""
    with served(relays.lab):
        socat = relays.lab.start("server", "sh", "-c", f"exec socat -u FILE:{relays.big} TCP4-LISTEN:7004,bind={SERVER},reuseaddr")
        peer = relays.connect(7004)
        assert peer.makefile("rb").read() == content(10_000_000)
        peer.close()
        socat.wait(10)
    with served(relays.lab):
        got = os.path.join(relays.lab.work, "got")
        socat = relays.lab.start("server", "socat", "-u", f"TCP4-LISTEN:7005,bind={SERVER},reuseaddr", f"CREATE:{got}")
        peer = relays.connect(7005)
        peer.sendall(content(10_000_000))
        peer.close()
        socat.wait(10)
        with open(got, "rb") as file:
            assert file.read() == content(10_000_000)


def netcat_listens(relays):
    with served(relays.lab):
        netcat = relays.lab.start("server", "sh", "-c", f"exec nc -N -l {SERVER} 7006 <{relays.big} >received")
        peer = relays.connect(7006)
        assert peer.makefile("rb").read() == content(10_000_000)
        peer.sendall(b"to netcat")  # behind its own end
        peer.close()
        netcat.wait(10)
        with open(os.path.join(relays.lab.work, "received"), "rb") as file:
            assert file.read() == b"to netcat"


def netcat_listens_again_and_again(relays):
    netcat = relays.lab.start("server", "sh", "-c", f"exec nc -k -l {SERVER} 7007 </dev/null >again")
    for n in range(5):
        peer = relays.connect(7007)
        peer.sendall(b"%d" % n)
        peer.shutdown(1)
        assert peer.makefile("rb").read() == b""
        peer.close()
    with open(os.path.join(relays.lab.work, "again"), "rb") as file:
        wait_for("all five are there", lambda: file.seek(0) == 0 and file.read() == b"01234")
    relays.lab.end(netcat)


def netcat_connects(relays):
    kernel = subprocess.Popen(
        relays.lab.command("client", "socat", f"TCP4-LISTEN:7008,bind={CLIENT},fork,reuseaddr", "EXEC:sha256sum"),
        stdin=subprocess.DEVNULL,
    )
    try:
        relays.connect(7008, CLIENT).close()
        with reached(relays.lab, 2):
            for command in (f"nc -N {CLIENT} 7008", f"socat -t 10 - TCP4:{CLIENT}:7008"):
                out = relays.lab.shimmed("sh", "-c", f"exec {command} <{relays.big}")
                assert out.split()[0] == hashlib.sha256(content(10_000_000)).hexdigest(), (command, out)
        assert "status 1" in relays.lab.shimmed("sh", "-c", f"nc -z {CLIENT} 9999; echo status $?")
        assert "status 0" in relays.lab.shimmed("sh", "-c", f"nc -z {CLIENT} {ORIGIN}; echo status $?")
        assert "status 1" in relays.lab.shimmed("sh", "-c", "nc -w 1 10.77.0.77 80; echo status $?")
    finally:
        kernel.terminate()
        kernel.wait()


CASES = [
    socat_in_front_of_a_program, socat_in_front_of_a_pipe, socat_between_two_connections, socat_of_one_connection,
    netcat_listens, netcat_listens_again_and_again, netcat_connects,
]

if __name__ == "__main__":
    main("relays", CASES, Relays, Relays.close)
