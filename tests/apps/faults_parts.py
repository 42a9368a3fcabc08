"""What the tests of faults share: a lab with servers that say what they see, and what looks at them."""

import contextlib
import os
import signal
import subprocess

from harness import ROOT, SERVER, Lab, main, wait_for

PORT = 7100

ECHO = r"""
import select, socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(256)
print("listening", flush=True)
e = select.epoll()
e.register(l, select.EPOLLIN)
open_ones = {}
while True:
    for fd, _ in e.poll():
        if fd == l.fileno():
            try:
                c, _ = l.accept()
            except OSError as error:
                print("accept", error.errno, flush=True)
                e.unregister(l)
                continue
            open_ones[c.fileno()] = c
            e.register(c, select.EPOLLIN)
            continue
        c = open_ones[fd]
        try:
            data = c.recv(65536)
        except OSError as error:
            print("lost", error.errno, flush=True)
            data = b""
        if data:
            c.sendall(data)
        else:
            e.unregister(fd)
            del open_ones[fd]
            c.close()
"""


class Faults:
    def __init__(self):
        self.lab = Lab()
        self.port = PORT

    @property
    def processes(self):
        return self.lab.processes

    def python(self, code, *arguments, log, env=None, prefix=()):
        path = os.path.join(self.lab.work, log)
        with contextlib.suppress(OSError):
            os.unlink(path)
        return self.lab.start("server", *prefix, "python3", "-u", "-c", code, *map(str, arguments), log=log, env=env)

    def echo(self, log="echo.log", **options):
        """An echo server on a port that no other case uses."""
        self.port += 10
        return self.echo_again(log, **options)

    def echo_again(self, log="echo.log", **options):
        """An echo server on the port of the last one."""
        server = self.python(ECHO, SERVER, self.port, log=log, **options)
        said(server, "listening")
        return server

    def pids(self, name, end="s"):
        out = subprocess.run(
            ["ip", "netns", "pids", f"knet-{self.lab.name}-{end}"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
        found = []
        for pid in map(int, out):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as comm:
                if comm.read().startswith(name):
                    found.append(pid)
        return found

    def host(self):
        hosts = self.pids("knetd")
        assert len(hosts) == 1, hosts
        return hosts[0]

    def no_host(self):
        """Waits until the hosts of earlier cases have ended."""
        wait_for("the host ends after linger_s", lambda: not self.pids("knetd"), 20)

    def ip(self, end, *words, check=True):
        return subprocess.run(
            ["ip", "-n", f"knet-{self.lab.name}-{end}", *words], check=check, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ).stdout


def lines(process):
    with open(process.log, errors="replace", encoding="utf-8") as log:
        return log.read().splitlines()


def said(process, line, seconds=20, times=1):
    """Waits until the process has said this line."""
    def has():
        assert process.poll() is None or lines(process).count(line) >= times, (process.returncode, lines(process))
        return lines(process).count(line) >= times

    return wait_for(f"says {line!r}", has, seconds)


def echoes(peer, text=b"hello"):
    peer.sendall(text)
    got = b""
    while len(got) < len(text):
        part = peer.recv(len(text) - len(got))
        assert part, "end of file"
        got += part
    assert got == text, got


def connects(faults, port=None, seconds=10):
    def try_once():
        with contextlib.suppress(OSError):
            return faults.lab.connect(port or faults.port)
        return None

    return wait_for("connects", try_once, seconds)


def serves(faults):
    """A client that comes now is echoed to."""
    peer = connects(faults)
    echoes(peer)
    peer.close()


def answers(faults, seconds=10):
    peer = connects(faults, seconds=seconds)
    peer.sendall(b"how many?")
    told = peer.recv(100)
    peer.close()
    return tuple(map(int, told.split()))


def knetctl():
    for kind in (os.environ.get("KNET_BUILD", "release"), "debug"):
        path = os.path.join(ROOT, "target", kind, "knetctl")
        if os.path.exists(path):
            return path
    raise AssertionError("knetctl is not built")


LIMITED = r"""
import os, socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    l.bind((sys.argv[1], int(sys.argv[2])))
    l.listen(5)
except OSError as error:
    print("errno", error.errno, flush=True)
    sys.exit(0)
print("listening", flush=True)
c, _ = l.accept()
n = 0
while data := c.recv(65536):
    c.sendall(data)
"""


def alone(case):
    """The case, after which nothing runs that it has started."""
    def run(faults):
        try:
            return case(faults)
        finally:
            for process in faults.lab.processes:
                if process.poll() is None:
                    # Also one that the case has stopped; its group is its own.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    run.__name__ = case.__name__
    return run


def main_of(name, cases):
    main(name, [alone(case) for case in cases], Faults, lambda faults: faults.lab.close())
