#!/usr/bin/env python3
"""What happens when something breaks under a running server: host, program, link, peer. Needs root."""

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import CLIENT, SERVER, Lab, main, wait_for

PORT = 7100

# A server that tells each thing that happens to it on a line of its log. Every way to wait has a thread in it.
WATCHED = r"""
import errno, os, select, socket, sys, threading, time
SERVER, PORT = sys.argv[1], int(sys.argv[2])
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
def name(error):
    return errno.errorcode.get(error.errno, str(error.errno))
def listen(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((SERVER, port))
    s.listen(64)
    return s
l = listen(PORT)
blocked = listen(PORT + 1)
say("listening")
received, polled, slept, sending = (l.accept()[0] for _ in range(4))
def receives():
    try:
        say("recv", len(received.recv(10)))
    except OSError as error:
        say("recv", name(error))
def accepts():
    try:
        blocked.accept()
        say("accept", "done")
    except OSError as error:
        say("accept", name(error))
def sleeps():
    e = select.epoll()
    e.register(slept, select.EPOLLIN | select.EPOLLET)
    for _, events in e.poll(20):
        say("epoll", bool(events & select.EPOLLHUP), bool(events & select.EPOLLERR))
    say("so_error", errno.errorcode.get(slept.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0))
def polls():
    p = select.poll()
    p.register(polled, 0)
    for _, events in p.poll(20000):
        say("poll", bool(events & select.POLLHUP), bool(events & select.POLLERR))
def sends():
    try:
        while True:
            sending.sendall(b"x" * 100000)
    except OSError as error:
        say("send", name(error))
threads = [threading.Thread(target=t) for t in (receives, accepts, sleeps, polls, sends)]
for t in threads: t.start()
say("ready")
for t in threads: t.join()
say("joined")
for what in (lambda: polled.send(b"x"), lambda: polled.send(b"x"), lambda: polled.recv(1), lambda: l.accept()):
    try:
        say("after", what())
    except OSError as error:
        say("after", name(error))
for s in (received, polled, slept, sending, l, blocked): s.close()
say("closed")
end = time.monotonic() + 30
while True:
    try:
        l = listen(PORT)
        break
    except OSError as error:
        say("again", name(error))
        if time.monotonic() > end:
            raise
        time.sleep(0.2)
say("listening again")
while True:
    c, _ = l.accept()
    while data := c.recv(1000):
        c.sendall(data)
    c.close()
"""

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


def a_killed_host_resets_every_connection_at_once(faults):
    server = faults.python(WATCHED, SERVER, PORT, log="watched.log")
    said(server, "listening")
    peers = [faults.lab.connect(PORT) for _ in range(4)]
    said(server, "ready")
    time.sleep(0.3)
    os.kill(faults.host(), signal.SIGKILL)
    begin = time.monotonic()
    said(server, "joined", 10)
    assert time.monotonic() - begin < 2, "not at once"
    said(server, "listening again", 40)
    out = lines(server)
    for line in ("recv ECONNRESET", "epoll True True", "so_error ECONNRESET", "poll True True", "send ECONNRESET"):
        assert line in out, (line, out)
    assert any(line.startswith("accept E") for line in out), out
    after = [line for line in out if line.startswith("after")]
    assert after[1:3] == ["after EPIPE", "after ECONNRESET"] or "after EPIPE" in after, after
    assert not any(line.startswith("again") for line in out), out
    # Served by a fresh host.
    peer = faults.lab.connect(PORT)
    before = faults.lab.stats()["flows_accepted"]
    assert before >= 1
    echoes(peer)
    peer.close()
    for old in peers:
        old.close()
    faults.lab.end(server)


def a_restarted_server_gets_a_fresh_host_after_a_killed_one(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    old = faults.host()
    os.kill(old, signal.SIGKILL)
    said(server, "lost 104")
    faults.lab.end(server)
    server = faults.python(ECHO, SERVER, faults.port, log="echo.log")
    said(server, "listening")
    assert faults.host() != old
    peer = connects(faults)
    echoes(peer)
    peer.close()
    faults.lab.end(server)


def a_host_killed_ten_times_is_replaced_every_time(faults):
    code = r"""
import socket, sys
def listen():
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((sys.argv[1], int(sys.argv[2])))
    l.listen(8)
    return l
import time
for n in range(11):
    while True:
        try:
            l = listen()
            break
        except OSError as error:
            time.sleep(0.1)
    print("listening", n, flush=True)
    try:
        while True:
            c, _ = l.accept()
            c.sendall(b"%02d" % n)
            c.close()
    except OSError as error:
        l.close()
"""
    faults.port += 10
    server = faults.python(code, SERVER, faults.port, log="ten.log")
    for n in range(11):
        said(server, f"listening {n}", 20)
        peer = connects(faults)
        assert peer.recv(2) == b"%02d" % n
        peer.close()
        if n < 10:
            os.kill(faults.host(), signal.SIGKILL)
    faults.lab.end(server)


LOOPS = r"""
import errno, os, select, socket, sys, time
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(8)
print("listening", flush=True)
c, _ = l.accept()
c.setblocking(False)
l.setblocking(False)
how = sys.argv[3]
e = select.epoll()
e.register(c, select.EPOLLIN)
r, w = os.pipe()
os.write(w, b"x")
if how == "busy": e.register(r, select.EPOLLIN)
p = select.poll()
p.register(c, select.POLLIN)
print("ready", flush=True)
while True:
    time.sleep(0.002)
    try:
        if how == "recv":
            c.recv(1)
        elif how == "send":
            c.send(b"x" * 65536)
        elif how == "accept":
            l.accept()
        elif how == "poll":
            if any(events & select.POLLHUP for _, events in p.poll(0)): print("HUP", flush=True); break
        elif any(events & select.EPOLLHUP for _, events in e.poll(0 if how == "look" else -1)):
            print("HUP", flush=True); break
    except BlockingIOError:
        continue
    except OSError as error:
        print("lost", flush=True)
        break
"""


def a_program_that_never_sleeps_hears_of_the_hosts_end(faults):
    for how in ("recv", "send", "accept", "poll", "look", "busy"):
        faults.port += 10
        server = faults.python(LOOPS, SERVER, faults.port, how, log="loops.log")
        said(server, "listening")
        peer = connects(faults)
        said(server, "ready")
        time.sleep(0.1)
        os.kill(faults.host(), signal.SIGKILL)
        server.wait(5)
        assert server.returncode == 0 and lines(server)[-1] in ("HUP", "lost"), (how, lines(server))
        peer.close()


def new_sockets_wait_for_a_host_where_the_config_says_so(faults):
    faults.no_host()
    path = f"{faults.lab.state}/server.conf"
    with open(path, encoding="ascii") as file:
        text = file.read()
    with open(path, "w", encoding="ascii") as file:
        file.write(text.replace('"common": {', '"common": { "on_host_lost": "wait",'))
    code = r"""
import os, signal, socket, sys
def listen():
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((sys.argv[1], int(sys.argv[2])))
    l.listen(8)
    return l
l = listen()
print("listening", flush=True)
try:
    l.accept()
except OSError:
    l.close()
print("lost", flush=True)
l = listen()
print("listening again", flush=True)
c, _ = l.accept()
c.sendall(b"hello")
"""
    faults.port += 10
    hidden = f"{faults.lab.work}/knetd"
    with open(hidden, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\n[ ! -e {hidden}.gone ] || exit 1\nexec {os.path.dirname(knetctl())}/knetd \"$@\"\n")
    os.chmod(hidden, 0o755)
    try:
        server = faults.python(code, SERVER, faults.port, log="wait.log", env={"KNET_HOST": hidden})
        said(server, "listening")
        with open(hidden + ".gone", "w", encoding="ascii"):
            pass
        os.kill(faults.host(), signal.SIGKILL)
        said(server, "lost")
        time.sleep(3)
        assert "listening again" not in lines(server), lines(server)
        os.unlink(hidden + ".gone")
        said(server, "listening again")
        assert connects(faults).recv(5) == b"hello"
        told = [line for line in lines(server) if line.startswith("knet:")]
        assert len(told) == 1, told
    finally:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)


def a_stopped_host_loses_nothing(faults):
    server = faults.echo()
    peer = connects(faults)
    host = faults.host()
    gaps = faults.lab.stats().get("time_gaps", 0)
    os.kill(host, signal.SIGSTOP)
    try:
        peer.sendall(b"while you slept")
        time.sleep(3)
    finally:
        os.kill(host, signal.SIGCONT)
    got = b""
    while len(got) < 15:
        got += peer.recv(100)
    assert got == b"while you slept"
    assert faults.lab.stats().get("time_gaps", 0) > gaps, faults.lab.stats()
    peer.close()
    faults.lab.end(server)


def a_stopped_program_loses_nothing(faults):
    server = faults.echo()
    peer = connects(faults)
    program = faults.pids("python3")[0]
    os.kill(program, signal.SIGSTOP)
    try:
        peer.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 50_000_000:
                sent += peer.send(b"y" * 65536)
        # The stack goes on without it: a new connection is made, and answered.
        other = faults.lab.connect(faults.port)
        time.sleep(1)
    finally:
        os.kill(program, signal.SIGCONT)
    peer.settimeout(20)
    got = 0
    while got < sent:
        part = peer.recv(1 << 20)
        assert part
        got += len(part)
    echoes(other)
    other.close()
    peer.close()
    faults.lab.end(server)


def a_killed_program_ends_its_connections_as_linux_does(faults):
    server = faults.echo()
    quiet, unread = connects(faults), connects(faults)
    echoes(quiet)
    host = faults.host()
    program = faults.pids("python3")[0]
    os.kill(program, signal.SIGSTOP)
    unread.sendall(b"never read")
    time.sleep(0.2)
    os.kill(program, signal.SIGKILL)
    assert quiet.recv(1) == b"", "a FIN where everything was read"
    try:
        unread.recv(1)
        raise AssertionError("a reset where something was unread")
    except ConnectionResetError:
        pass
    with contextlib.suppress(OSError):
        faults.lab.connect(faults.port)
        raise AssertionError("the port is closed")
    server.wait(10)
    # The port is free at once, and the lingering host is taken over.
    begin = time.monotonic()
    server = faults.python(ECHO, SERVER, faults.port, log="echo.log")
    said(server, "listening")
    assert faults.host() == host
    peer = faults.lab.connect(faults.port)
    echoes(peer)
    assert time.monotonic() - begin < 5
    peer.close()
    faults.lab.end(server)


def a_host_without_client_ends_after_linger(faults):
    server = faults.echo()
    faults.host()
    faults.lab.end(server)
    time.sleep(1)
    assert faults.pids("knetd"), "it lingers for a restarted server"
    faults.no_host()


def link_down_and_up(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    for end in ("c", "s"):
        faults.ip(end, "link", "set", "veth0", "down")
        peer.sendall(b"abc")
        time.sleep(1)
        faults.ip(end, "link", "set", "veth0", "up")
        got = b""
        peer.settimeout(20)
        while len(got) < 3:
            got += peer.recv(10)
        echoes(peer)
    echoes(faults.lab.connect(faults.port, 20))
    peer.close()
    faults.lab.end(server)


def mtu_of_the_interface_changed(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    try:
        for mtu in ("1000", "1500"):
            for end in ("s", "c"):
                faults.ip(end, "link", "set", "veth0", "mtu", mtu)
            echoes(peer, b"z" * 3000)
            echoes(faults.lab.connect(faults.port), b"z" * 100_000)
    finally:
        for end in ("s", "c"):
            faults.ip(end, "link", "set", "veth0", "mtu", "1500")
    peer.close()
    faults.lab.end(server)


def interface_renamed_while_running(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    try:
        faults.ip("s", "link", "set", "veth0", "down")
        faults.ip("s", "link", "set", "veth0", "name", "other0")
        faults.ip("s", "link", "set", "other0", "up")
        peer.settimeout(20)
        echoes(peer)
        echoes(connects(faults))
    finally:
        faults.ip("s", "link", "set", "other0", "down", check=False)
        faults.ip("s", "link", "set", "other0", "name", "veth0", check=False)
        faults.ip("s", "link", "set", "veth0", "up")
    echoes(peer)
    peer.close()
    faults.lab.end(server)


CONNECTS = r"""
import socket, sys, time
for address in sys.argv[1:]:
    host, port = address.split(":")
    s = socket.socket()
    begin = time.monotonic()
    try:
        s.connect((host, int(port)))
        print("connected", flush=True)
    except OSError as error:
        print(error.errno, round(time.monotonic() - begin, 1), flush=True)
"""


def connect_answers_as_the_network_does(faults):
    """An unanswered neighbour: EHOSTUNREACH after 3 s. A closed port: ECONNREFUSED at once."""
    client = faults.python(CONNECTS, "10.77.0.77:80", f"{CLIENT}:9", log="connects.log")
    client.wait(30)
    out = lines(client)
    unreachable, refused = (line.split() for line in out)
    assert unreachable[0] == "113" and 2.5 <= float(unreachable[1]) <= 4.5, out
    assert refused[0] == "111" and float(refused[1]) < 0.5, out


def the_address_on_a_kernel_interface_is_refused(faults):
    faults.no_host()
    faults.ip("c", "link", "set", "veth0", "up")
    faults.ip("s", "addr", "add", f"{SERVER}/24", "dev", "veth0")
    try:
        environment = {"KNET_CONF": f"{faults.lab.state}/server.conf", "KNET_RUN_DIR": f"{faults.lab.state}/run-s"}
        listens = "import socket,sys; s=socket.socket(); s.bind((sys.argv[1], 7999)); s.listen(1)"
        out = subprocess.run(
            ["ip", "netns", "exec", f"knet-{faults.lab.name}-s", knetctl(), "run", "--", "python3", "-c", listens, SERVER],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30,
            check=False,
        ).stdout
    finally:
        faults.ip("s", "addr", "del", f"{SERVER}/24", "dev", "veth0")
    assert f"ip addr del {SERVER}/24 dev veth0" in out, out
    faults.no_host()


def knetctl():
    from harness import ROOT

    for kind in (os.environ.get("KNET_BUILD", "release"), "debug"):
        path = os.path.join(ROOT, "target", kind, "knetctl")
        if os.path.exists(path):
            return path
    raise AssertionError("knetctl is not built")


def an_interface_with_other_addresses_is_refused_unless_exclusive(faults):
    faults.no_host()
    faults.ip("s", "addr", "add", "192.0.2.1/24", "dev", "veth0")
    faults.ip("s", "route", "add", "default", "via", "192.0.2.9", "dev", "veth0")
    path = f"{faults.lab.state}/server.conf"
    with open(path, encoding="ascii") as file:
        text = file.read()
    listens = (
        "import socket,sys; s=socket.socket()\n"
        "try:\n  s.bind((sys.argv[1], 7999)); s.listen(1); print('listening')\n"
        "except OSError as error: print('errno', error.errno)"
    )
    try:
        server = faults.python(listens, SERVER, log="exclusive.log")
        server.wait(20)
        out = lines(server)
        assert "errno 99" in out, out
        told = [line for line in out if line.startswith("knet:")]
        assert len(told) == 1 and "veth0" in told[0] and "exclusive" in told[0], out
        with open(path, "w", encoding="ascii") as file:
            file.write(text.replace('"netdev"', '"exclusive": true, "netdev"'))
        server = faults.python(listens, SERVER, log="exclusive.log")
        server.wait(20)
        assert lines(server) == ["listening"], lines(server)
    finally:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        faults.ip("s", "route", "del", "default", check=False)
        faults.ip("s", "addr", "del", "192.0.2.1/24", "dev", "veth0")
        faults.no_host()


CASES = [
    a_killed_host_resets_every_connection_at_once, a_restarted_server_gets_a_fresh_host_after_a_killed_one,
    a_host_killed_ten_times_is_replaced_every_time, a_program_that_never_sleeps_hears_of_the_hosts_end,
    new_sockets_wait_for_a_host_where_the_config_says_so, a_stopped_host_loses_nothing, a_stopped_program_loses_nothing,
    a_killed_program_ends_its_connections_as_linux_does, a_host_without_client_ends_after_linger, link_down_and_up,
    mtu_of_the_interface_changed, interface_renamed_while_running, connect_answers_as_the_network_does,
    the_address_on_a_kernel_interface_is_refused, an_interface_with_other_addresses_is_refused_unless_exclusive,
]



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


if __name__ == "__main__":
    main("faults", [alone(case) for case in CASES], Faults, lambda faults: faults.lab.close())
