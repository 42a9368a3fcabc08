#!/usr/bin/env python3
"""Programs that cannot be served run on kernel sockets, untouched, and never hang; knetctl says so.

Linked statically, with file capabilities, and those that wait for sockets by system calls of their own."""

import os
import pwd
import shutil
import subprocess

from harness import ROOT, SERVER, Lab, apart, main, wait_for

PORT = 7001
SOURCE = os.path.join(ROOT, "tests", "c", "raw_waits.c")
NO_EPOLL, NO_URING = "-DEPOLL_WAIT=39", "-DURING_ENTER=39"


class Untouched:
    def __init__(self):
        apart()
        self.lab = Lab()
        self.nobody = pwd.getpwnam("nobody")
        self.lab.open_to(self.nobody.pw_uid, self.nobody.pw_gid)
        shutil.copy(self.knetctl(), os.path.join(self.lab.work, "built"))
        self.build("epoll", NO_URING)
        self.build("io_uring", NO_EPOLL)
        self.build("static", "-static")
        self.build("honest", NO_EPOLL, NO_URING)

    def build(self, name, *flags):
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-o", self.path(name), SOURCE], check=True)

    @property
    def processes(self):
        return self.lab.processes

    def path(self, name):
        return os.path.join(self.lab.work, name)

    def knetctl(self):
        kinds = (os.environ.get("KNET_BUILD", "release"), "debug")
        return next(filter(os.path.exists, (os.path.join(ROOT, "target", kind, "knetctl") for kind in kinds)))

    def why(self, pid):
        state = os.path.join(self.lab.state, "run-s")
        done = subprocess.run(
            ["ip", "netns", "exec", f"knet-{self.lab.name}-s", "env", f"KNET_RUN_DIR={state}", self.knetctl(), "why", str(pid)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20,
        )
        return done.stdout

    def served_by_the_kernel(self, *words, address="0.0.0.0", said=""):
        """The server answers on loopback, ends by itself, and knetctl and the library said why."""
        log = f"{words[-1]}.log"
        server = self.lab.start("server", *words, address, str(PORT), self.way, "3", log=log)
        path = os.path.join(self.lab.work, log)

        def text():
            with open(path, errors="replace", encoding="utf-8") as file:
                return file.read()

        wait_for("it listens", lambda: "listening" in text(), 15)
        why = self.why(server.pid)
        for size in (1, 4_096, 100_000):
            peer = self.lab.connect(PORT, 10.0, "127.0.0.1", end="s")
            peer.sendall(b"x" * size)
            peer.shutdown(1)
            assert len(peer.makefile("rb").read()) == size
            peer.close()
        server.wait(10)
        assert server.returncode == 0, server.returncode
        assert said in text(), text()
        os.unlink(path)
        return why, text


def waits(untouched, way, call):
    """The server on every address is the kernel's; on the stack's own address it is refused as the kernel does, at once."""
    program = untouched.path(way)
    untouched.way = way
    why, _ = untouched.served_by_the_kernel(program, said="waits for sockets by system calls of its own")
    assert "by system calls of its own" in why and call in why, why
    out = untouched.lab.shimmed(program, SERVER, str(PORT), way, "1", check=False)
    assert "bind: Cannot assign requested address" in out, out
    assert f"by system calls of its own ({call})" in out, out


def epoll_past_libc(untouched):
    waits(untouched, "epoll", "epoll_pwait")


def io_uring(untouched):
    with open("/proc/sys/kernel/io_uring_disabled", encoding="ascii") as file:
        if file.read().strip() != "0":
            return "io_uring is switched off on this machine"
    return waits(untouched, "io_uring", "io_uring_enter")


def a_static_program(untouched):
    untouched.way = "poll"
    why, _ = untouched.served_by_the_kernel(untouched.path("static"), said="is linked statically")
    assert "linked statically" in why, why


def served_by_the_stack(untouched, program, log):
    """The program, after it has given one client its bytes back and ended."""
    server = untouched.lab.start("server", untouched.path(program), SERVER, str(PORT), "poll", "1", log=log)

    def connect():
        try:
            return untouched.lab.connect(PORT)
        except OSError:
            return None

    peer = wait_for("it is served by the stack", connect, 15)
    peer.sendall(b"hello")
    assert peer.recv(5) == b"hello"
    peer.close()
    server.wait(10)
    return server


def one_that_waits_through_libc_is_served(untouched):
    """The counter-proof: the same program without the suspicious calls."""
    server = served_by_the_stack(untouched, "honest", "honest.log")
    with open(server.log, encoding="utf-8") as file:
        assert file.read() == "listening\ndone\n"


def one_that_the_config_names_is_served(untouched):
    """Who knows better, names the program in common.accelerate.programs."""
    with untouched.lab.configured('"common": {', '"common": { "accelerate": { "programs": ["epoll"] }, '):
        served_by_the_stack(untouched, "epoll", "named.log")


def a_program_with_file_capabilities(untouched):
    """As a user without rights, who gets them from the file: the loader takes no LD_PRELOAD, and says nothing."""
    program = untouched.path("capable")
    shutil.copy(untouched.path("honest"), program)
    subprocess.run(["setcap", "cap_net_bind_service+ep", program], check=True)
    user = ["setpriv", f"--reuid={untouched.nobody.pw_uid}", f"--regid={untouched.nobody.pw_gid}", "--clear-groups"]
    knetctl = os.path.join(untouched.lab.work, "built", "knetctl")
    out = untouched.lab.shimmed("env", "-u", "LD_PRELOAD", *user, knetctl, "run", "--", program, "192.0.2.1", "80", "poll", "1", check=False)
    assert "has file capabilities" in out and "runs on kernel sockets" in out, out
    assert "bind: Cannot assign requested address" in out, out
    untouched.way = "poll"
    why, _ = untouched.served_by_the_kernel("env", "-u", "LD_PRELOAD", *user, knetctl, "run", "--", program, said="has file capabilities")
    assert "it has file capabilities" in why, why


CASES = [
    epoll_past_libc, io_uring, a_static_program, one_that_waits_through_libc_is_served, one_that_the_config_names_is_served,
    a_program_with_file_capabilities,
]

if __name__ == "__main__":
    main("untouched", CASES, Untouched, lambda untouched: untouched.lab.close())
