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
        while True:
            c = blocked.accept()[0]
            say("accept", c.recv(10).decode())
            c.close()
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
threads = [threading.Thread(target=t) for t in (receives, sleeps, polls, sends)]
threading.Thread(target=accepts, daemon=True).start()
for t in threads: t.start()
say("ready")
for t in threads: t.join()
say("joined")
for what in (lambda: polled.send(b"x"), lambda: polled.send(b"x"), lambda: polled.recv(1)):
    try:
        say("after", what())
    except OSError as error:
        say("after", name(error))
for s in (received, polled, slept, sending): s.close()
other = listen(PORT + 2)
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
    after = [line for line in out if line.startswith("after")]
    assert after[1:3] == ["after EPIPE", "after ECONNRESET"] or "after EPIPE" in after, after
    # Served by a fresh host: the listener that nobody waits on now, that of a blocked accept, a new one.
    for port in (PORT, PORT + 1):
        peer = connects(faults, port)
        peer.sendall(b"hello")
        if port == PORT:
            assert peer.recv(5) == b"hello"
        else:
            said(server, "accept hello")
        peer.close()
    connects(faults, PORT + 2).close()
    assert faults.lab.stats()["flows_accepted"] >= 2
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
    server = faults.echo_again()
    assert faults.host() != old
    serves(faults)
    faults.lab.end(server)


def a_host_killed_ten_times_is_replaced_every_time(faults):
    code = r"""
import socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(8)
print("listening", flush=True)
n = 0
while True:
    c, _ = l.accept()
    c.sendall(b"%02d" % n)
    c.close()
    n += 1
"""
    faults.port += 10
    server = faults.python(code, SERVER, faults.port, log="ten.log")
    said(server, "listening")
    program = faults.pids("python3")[0]

    def facts():
        with open(f"/proc/{program}/status", encoding="ascii") as status:
            rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return rss, len(os.listdir(f"/proc/{program}/fd"))

    for n in range(11):
        peer = connects(faults)
        assert peer.recv(2) == b"%02d" % n
        peer.close()
        if n == 0:
            first = facts()
        if n < 10:
            os.kill(faults.host(), signal.SIGKILL)
    # The channels of the hosts that were lost are gone too.
    last = facts()
    assert last[0] - first[0] < 8192 and last[1] - first[1] <= 8, (first, last)
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
            d, _ = l.accept()
            d.close()
            print("accepted", flush=True); break
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
        if how == "accept":
            # Its listener comes back.
            connects(faults).close()
        server.wait(5)
        assert server.returncode == 0 and lines(server)[-1] in ("HUP", "lost", "accepted"), (how, lines(server))
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
c, _ = l.accept()
try:
    c.recv(1)
except ConnectionResetError:
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
        peer = connects(faults)
        with open(hidden + ".gone", "w", encoding="ascii"):
            pass
        os.kill(faults.host(), signal.SIGKILL)
        said(server, "lost")
        peer.close()
        time.sleep(3)
        assert "listening again" not in lines(server), lines(server)
        os.unlink(hidden + ".gone")
        said(server, "listening again")
        assert connects(faults).recv(5) == b"hello"
        told = [line for line in lines(server) if line.startswith("knet:")]
        # That it has gone, and why there is no other one.
        assert len(told) == 2 and "has gone" in told[0] and "did not answer" in told[1], told
    finally:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)


# A server that waits by argv[3]; told which one by a word, it answers. It counts what its waits told it of the listener
# without a connection.
REVIVED = r"""
import select, socket, sys
how = sys.argv[3]
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(300)
l.setblocking(False)
if "epoll" in how:
    e = select.epoll()
    e.register(l, select.EPOLLIN | (select.EPOLLET if how == "epoll-et" else 0))
    copy = l.dup()
    if how == "epoll-dup": e.register(copy, select.EPOLLIN)
    wait = lambda: [fd for fd, _ in e.poll(maxevents=8)]
elif how == "poll":
    p = select.poll()
    p.register(l, select.POLLIN)
    wait = lambda: [fd for fd, _ in p.poll()]
else:
    wait = lambda: select.select([l], [], [])[0] and [l.fileno()]
print("listening", flush=True)
kept = {}
vain = lost = 0
while True:
    for fd in wait():
        if fd in kept:
            try:
                data = kept[fd].recv(100)
            except OSError:
                lost += 1
                data = b""
            if data:
                kept[fd].sendall(b"%d %d" % (lost, vain))
            else:
                e.unregister(fd)
                kept.pop(fd).close()
            continue
        took = 0
        try:
            while True:
                c, _ = l.accept()
                took += 1
                if "epoll" in how:
                    kept[c.fileno()] = c
                    e.register(c, select.EPOLLIN)
                else:
                    c.recv(100)
                    c.sendall(b"%d %d" % (lost, vain))
                    c.close()
        except BlockingIOError:
            vain += took == 0 and how != "epoll-dup"
"""


def answers(faults, seconds=10):
    peer = connects(faults, seconds=seconds)
    peer.sendall(b"how many?")
    told = peer.recv(100)
    peer.close()
    return tuple(map(int, told.split()))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def a_listener_comes_back_with_the_next_host(faults):
    """In the same event loop, which hears of every connection that was lost and is never woken for nothing."""
    for how in ("epoll", "epoll-et", "epoll-dup", "poll", "select"):
        faults.port += 10
        server = faults.python(REVIVED, SERVER, faults.port, how, log="revived.log")
        said(server, "listening")
        assert answers(faults) == (0, 0)
        count = 100 if "epoll" in how else 0
        peers = [faults.lab.connect(faults.port) for _ in range(count)]
        wait_for("all are accepted", lambda: faults.lab.stats().get("flows_accepted", 0) >= count)
        old = faults.host()
        os.kill(old, signal.SIGKILL)
        lost, vain = answers(faults)
        assert faults.host() != old
        # The new listener may be served before the last one that was lost is told.
        if count:
            lost = wait_for("every loss is told", lambda: answers(faults)[0] == count and count)
        assert (lost, vain) == (count, 0), (how, lost, vain)
        told = [line for line in lines(server) if line.startswith("knet:")]
        assert len(told) == 2 and "has gone" in told[0] and "listened on again" in told[1], told
        for peer in peers:
            peer.close()
        faults.lab.end(server)


def without_a_host_a_lost_listener_costs_nothing(faults):
    """No other host can be had for a while: nobody spins, nobody is told of it but once, and it comes back later."""
    faults.no_host()
    hidden = f"{faults.lab.work}/knetd"
    with open(hidden, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\n[ ! -e {hidden}.gone ] || exit 1\nexec {os.path.dirname(knetctl())}/knetd \"$@\"\n")
    os.chmod(hidden, 0o755)
    for how in ("epoll", "poll", "select"):
        faults.port += 10
        server = faults.python(REVIVED, SERVER, faults.port, how, log="revived.log", env={"KNET_HOST": hidden})
        said(server, "listening")
        with open(hidden + ".gone", "w", encoding="ascii"):
            pass
        os.kill(faults.host(), signal.SIGKILL)
        pid = faults.pids("python3")[0]
        before = cpu_seconds(pid)
        time.sleep(3)
        assert cpu_seconds(pid) - before < 1, how
        os.unlink(hidden + ".gone")
        lost, vain = answers(faults)
        assert (lost, vain) == (0, 0), (how, lost, vain)
        told = [line for line in lines(server) if line.startswith("knet:")]
        assert len(told) == 3 and "did not answer" in told[1] and "listened on again" in told[2], told
        faults.lab.end(server)


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
    server = faults.echo_again()
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


def total(data):
    if len(data) % 2:
        data += b"\0"
    value = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while value >> 16:
        value = (value >> 16) + (value & 0xFFFF)
    return ~value & 0xFFFF


def tcp_segment(source, target, sport, dport, *, seq=1, ack=0, flags=2, options=b"", payload=b"", checksum=None, offset=None):
    """A TCP segment; `source` and `target` are dotted addresses."""
    length = 20 + len(options)
    offset = length // 4 if offset is None else offset
    head = struct.pack("!HHIIBBHHH", sport, dport, seq, ack, offset << 4, flags, 1000, 0, 0) + options
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, len(head) + len(payload))
    value = total(pseudo + head + payload) if checksum is None else checksum
    return head[:16] + struct.pack("!H", value) + head[18:] + payload


def ip_packet(source, target, body, *, protocol=6, length=None, checksum=None, version=4, words=5, fragment=0, options=b""):
    words = words if not options else 5 + len(options) // 4
    length = 20 + len(options) + len(body) if length is None else length
    head = struct.pack("!BBHHHBBH", version << 4 | words, 0, length, 7, fragment, 64, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(target) + options
    value = total(head) if checksum is None else checksum
    return head[:10] + struct.pack("!H", value) + head[12:] + body


class Wire:
    """A raw socket on the peer's end of the veth."""

    def __init__(self, faults):
        with faults.lab.inside("c"):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self.socket.bind(("veth0", 0))
        self.mac = self.socket.getsockname()[4]
        echoes_once = faults.ip("c", "neigh", "show", SERVER)
        self.target = bytes.fromhex(echoes_once.split("lladdr ")[1].split()[0].replace(":", ""))

    def send(self, packet, kind=0x0800, target=None, source=None):
        while True:
            try:
                return self.socket.send((target or self.target) + (source or self.mac) + struct.pack("!H", kind) + packet)
            except OSError as error:
                # The queue of the veth is full.
                if error.errno != 105:
                    raise
                time.sleep(0.001)

    def arp(self, operation, mac, address, target_mac, target_address, to=None):
        packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        packet += mac + socket.inet_aton(address) + target_mac + socket.inet_aton(target_address)
        self.send(packet, 0x0806, to or b"\xff" * 6, mac)

    def close(self):
        self.socket.close()


class Redis:
    """A Redis whose client checks every answer while something else goes on."""

    def __init__(self, faults):
        faults.port += 10
        self.faults, self.port = faults, faults.port
        self.server = faults.lab.start(
            "server", "redis-server", "--port", str(self.port), "--bind", SERVER, "--protected-mode", "no", "--save", "",
            log="redis.log",
        )
        self.stop = threading.Event()
        self.faults_seen = []
        self.done = 0
        self.peer = connects(faults, self.port)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def ask(self, peer, *words):
        peer.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        reader = peer.makefile("rb")
        line = reader.readline()
        if line[:1] == b"$":
            return reader.read(int(line[1:]) + 2)[:-2]
        return line[1:-2]

    def work(self):
        try:
            while not self.stop.is_set():
                value = b"%d" % self.done * 50
                assert self.ask(self.peer, b"SET", b"k", value) == b"OK"
                assert self.ask(self.peer, b"GET", b"k") == value
                self.done += 1
        except (OSError, AssertionError, ValueError) as error:
            self.faults_seen.append(repr(error))

    def end(self):
        """Nothing was lost, and new clients are served."""
        done = self.done
        wait_for("the client goes on", lambda: self.done > done + 20 or self.faults_seen)
        self.stop.set()
        self.thread.join()
        assert not self.faults_seen, self.faults_seen
        peer = self.faults.lab.connect(self.port)
        assert self.ask(peer, b"PING") == b"PONG"
        peer.close()
        self.peer.close()
        self.faults.lab.end(self.server)


@contextlib.contextmanager
def under_redis(faults):
    redis = Redis(faults)
    wire = Wire(faults)
    try:
        yield redis, wire
        redis.end()
    finally:
        redis.stop.set()
        redis.thread.join()
        wire.close()


def counted(faults, names, before, at_least):
    def enough():
        now = faults.lab.stats()
        return all(now.get(name, 0) - before.get(name, 0) >= at_least for name in names)

    try:
        wait_for("counted", enough, 5)
    except AssertionError:
        now = faults.lab.stats()
        raise AssertionError({name: now.get(name, 0) - before.get(name, 0) for name in names}) from None


def garbage_frames_are_counted_and_dropped(faults):
    with under_redis(faults) as (redis, wire):
        before = faults.lab.stats()
        port = redis.port
        syn = tcp_segment(CLIENT, SERVER, 5000, port)
        bad = {
            "rx_dropped_ipv4_truncated": [b"\x45\0\0", b""],
            "rx_dropped_ipv4_version": [ip_packet(CLIENT, SERVER, syn, version=6)],
            "rx_dropped_ipv4_header_length": [ip_packet(CLIENT, SERVER, syn, words=4)],
            "rx_dropped_ipv4_total_length": [
                ip_packet(CLIENT, SERVER, syn, length=19), ip_packet(CLIENT, SERVER, syn, length=1400),
            ],
            "rx_dropped_ipv4_checksum": [ip_packet(CLIENT, SERVER, syn, checksum=0x1234)],
            "rx_dropped_ipv4_options": [ip_packet(CLIENT, SERVER, syn, options=b"\x07\x00\x00\x00")],
            "rx_dropped_ipv4_source_route": [ip_packet(CLIENT, SERVER, syn, options=b"\x83\x07\x04\x0a\x4d\x00\x02\x00")],
            "rx_dropped_ipv4_source": [
                ip_packet(source, SERVER, tcp_segment(source, SERVER, 5000, port))
                for source in ("127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0")
            ],
            "rx_dropped_ipv4_other_address": [ip_packet(CLIENT, "10.77.0.9", tcp_segment(CLIENT, "10.77.0.9", 5000, port))],
            "rx_dropped_protocol": [ip_packet(CLIENT, SERVER, b"x" * 40, protocol=200)],
            "rx_dropped_tcp_truncated": [
                ip_packet(CLIENT, SERVER, syn[:12]),
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, offset=3)),
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, offset=15)),
            ],
            "rx_dropped_tcp_checksum": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, checksum=1))],
            "rx_dropped_tcp_options": [
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, options=b"\x02\x00\x00\x00")),
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, options=b"\x01\x01\x02\xff")),
            ],
            "rx_dropped_tcp_flags_none": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=0))],
            "rx_dropped_tcp_flags_all": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=0x3F))],
            "rx_dropped_tcp_flags_syn_fin": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=3))],
            "rx_dropped_tcp_flags_syn_rst": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=6))],
            "rx_dropped_port_zero": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 0, port))],
            "rx_dropped_icmp_truncated": [ip_packet(CLIENT, SERVER, b"\x08\0\0", protocol=1)],
            "rx_dropped_icmp_checksum": [ip_packet(CLIENT, SERVER, b"\x08\0\x12\x34\0\0\0\0", protocol=1)],
            "rx_dropped_udp_truncated": [ip_packet(CLIENT, SERVER, b"\0\x35\0", protocol=17)],
        }
        land = ip_packet(SERVER, SERVER, tcp_segment(SERVER, SERVER, port, port))
        for _ in range(20):
            for packets in bad.values():
                for packet in packets:
                    wire.send(packet)
            wire.send(land)
            # The port's packet socket puts fragments together in the kernel: these two never reach us.
            wire.send(ip_packet(CLIENT, SERVER, syn, fragment=0x2000))
            wire.send(ip_packet(CLIENT, SERVER, syn, fragment=5))
            wire.send(b"x" * 60, kind=0x88CC)
            wire.send(ip_packet(CLIENT, SERVER, syn), source=b"\x01\0\x5e\0\0\1")
            wire.send(ip_packet(CLIENT, SERVER, syn), target=b"\x02\x01\x02\x03\x04\x05")
            # The ring of the port holds so many frames only.
            time.sleep(0.01)
        # The same, cut at every byte.
        whole = ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, options=b"\x02\x04\x05\xb4", payload=b"data"))
        for cut in range(len(whole)):
            wire.send(whole[:cut])
        for name in bad:
            # A veth pads nothing, so a short frame reaches us as it is.
            counted(faults, [name], before, 20)
        counted(faults, ["rx_dropped_ether_type", "rx_dropped_source_mac", "rx_dropped_other_mac"], before, 20)
        now = faults.lab.stats()
        lands = sum(now.get(k, 0) - before.get(k, 0) for k in ("rx_dropped_land", "rx_dropped_ipv4_source_ours"))
        assert lands >= 20, lands
        assert now.get("flows_dropped_panic", 0) == 0


def random_frames_harm_nobody(faults):
    import random

    seed = int(os.environ.get("KNET_SEED", time.time_ns() & 0xFFFFFF))
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with under_redis(faults) as (redis, wire):
        for _ in range(20_000):
            options = chance.randbytes(4 * chance.randrange(11)) if chance.random() < 0.5 else b""
            segment = tcp_segment(
                CLIENT, SERVER, chance.choice([redis.peer.getsockname()[1], chance.randrange(65536)]),
                chance.choice([redis.port, chance.randrange(65536)]), seq=chance.getrandbits(32), ack=chance.getrandbits(32),
                flags=chance.randrange(256), options=options, payload=chance.randbytes(chance.randrange(50)),
            )
            packet = bytearray(ip_packet(CLIENT, SERVER, segment))
            if chance.random() < 0.3:
                packet[chance.randrange(len(packet))] ^= 1 << chance.randrange(8)
            if chance.random() < 0.1:
                packet = packet[:chance.randrange(len(packet))]
            wire.send(bytes(packet), chance.choice([0x0800] * 20 + [0x0806, 0x8100, 0x86DD]))
        assert faults.lab.stats().get("flows_dropped_panic", 0) == 0


def a_syn_flood_of_20_000_sources(faults):
    with under_redis(faults) as (redis, wire):
        before = faults.lab.stats()
        for n in range(20_000):
            source = f"10.77.{1 + n // 250 % 80}.{1 + n % 250}"
            wire.send(ip_packet(source, SERVER, tcp_segment(source, SERVER, 1024 + n % 60_000, redis.port, seq=n)))
        # A client that comes during the flood gets in by trying again, as on Linux.
        peer = connects(faults, redis.port, 60)
        assert redis.ask(peer, b"PING") == b"PONG"
        peer.close()
        now = faults.lab.stats()
        dropped = now["syn_dropped_backlog_full"] - before.get("syn_dropped_backlog_full", 0)
        assert dropped > 0 or now["syns_received"] - before["syns_received"] >= 20_000, now


def resets_and_syns_in_the_window_are_challenged(faults):
    """RFC 5961: only the exact sequence number resets; a SYN on a live connection never does."""
    with under_redis(faults) as (redis, wire):
        port = redis.peer.getsockname()[1]
        before = faults.lab.stats()
        for step in range(0, 1 << 32, 1 << 15):
            wire.send(ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, port, redis.port, seq=step | 1, flags=4)))
            if step % (1 << 17) == 0:
                wire.send(ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, port, redis.port, seq=step | 1, flags=2)))
        now = faults.lab.stats()
        sent = sum(now.get(k, 0) - before.get(k, 0) for k in ("challenge_acks_sent", "challenge_acks_limited"))
        assert sent > 0, now


def an_arp_flood_does_not_push_out_the_gateway(faults):
    with under_redis(faults) as (redis, wire):
        before = faults.lab.stats()
        for n in range(20_000):
            mac = b"\x02\x55" + struct.pack("!I", n)
            address = f"10.77.0.{1 + n % 254}" if n % 254 not in (0, 1) else f"10.77.0.{3 + n % 100}"
            wire.arp(1, mac, address, b"\0" * 6, SERVER)
            if n % 3 == 0:
                wire.arp(2, mac, address, wire.target, SERVER, to=wire.target)
        for cut in range(28):
            wire.send(b"\0\1\x08\0\6\4\0\1"[:cut] + b"\xff" * max(0, cut - 8), 0x0806)
        counted(faults, ["rx_arp_packets"], before, 10_000)


def the_address_of_another_station_is_counted_and_told(faults):
    with under_redis(faults) as (_, wire):
        before = faults.lab.stats()
        for _ in range(3):
            wire.arp(1, b"\x02\x66\x66\x66\x66\x66", SERVER, b"\0" * 6, SERVER)
            wire.arp(2, b"\x02\x66\x66\x66\x66\x66", SERVER, wire.mac, CLIENT)
        counted(faults, ["arp_duplicates"], before, 3)
        with open(f"{faults.lab.state}/server-host.log", encoding="utf-8", errors="replace") as log:
            text = log.read()
        assert "02:66:66:66:66:66" in text and SERVER in text, text[-500:]
        # We still say that the address is ours.
        faults.ip("c", "neigh", "flush", "dev", "veth0")


def the_peers_mac_changes(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    old = faults.ip("c", "-o", "link", "show", "veth0").split("link/ether ")[1].split()[0]
    try:
        for mac in ("02:aa:bb:cc:dd:01", old):
            faults.ip("c", "link", "set", "veth0", "down")
            faults.ip("c", "link", "set", "veth0", "address", mac)
            faults.ip("c", "link", "set", "veth0", "up")
            wire = Wire.__new__(Wire)
            with faults.lab.inside("c"):
                wire.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
                wire.socket.bind(("veth0", 0))
            ours = bytes.fromhex(mac.replace(":", ""))
            wire.arp(1, ours, CLIENT, b"\0" * 6, CLIENT)
            wire.close()
            begin = time.monotonic()
            echoes(peer, b"q" * 10_000)
            assert time.monotonic() - begin < 5
    finally:
        faults.ip("c", "link", "set", "veth0", "address", old)
    peer.close()
    faults.lab.end(server)


# Accepts until there is no number left, then frees one at a word on its first connection.
EMFILE = r"""
import errno, os, resource, select, socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(256)
how = sys.argv[3]
e = select.epoll()
e.register(l, select.EPOLLIN)
if how == "epoll": l.setblocking(False)
print("listening", flush=True)
kept = []
told = False
while True:
    if how == "epoll":
        assert e.poll(20)
    try:
        c, _ = l.accept()
    except OSError as error:
        if not told:
            print(errno.errorcode[error.errno], flush=True)
            told = True
        if kept and select.select([kept[0]], [], [], 0.01)[0]:
            first = kept.pop(0)
            first.recv(1)
            first.close()
        continue
    c.sendall(b"hello")
    kept.append(c)
    print("accepted", len(kept), flush=True)
"""


def no_number_left_in_the_middle_of_accept(faults):
    """The connection stays queued, and is accepted as soon as a number is free."""
    for how in ("blocking", "epoll"):
        faults.port += 10
        server = faults.python(
            EMFILE, SERVER, faults.port, how, log="emfile.log", prefix=("prlimit", "--nofile=64:64"),
        )
        said(server, "listening")
        peers = [faults.lab.connect(faults.port) for _ in range(80)]
        said(server, "EMFILE")
        got = []
        for peer in peers:
            peer.settimeout(0.3)
            try:
                got.append(peer.recv(5))
            except TimeoutError:
                break
        served = len(got)
        assert 30 < served < 64 and all(text == b"hello" for text in got), (how, served)
        for n in range(10):
            # The one that is closed makes room for exactly one.
            peers[n].sendall(b"x")
            peers[served + n].settimeout(5)
            assert peers[served + n].recv(5) == b"hello"
        for peer in peers:
            peer.close()
        faults.lab.end(server)


ENOUGH = r"""
import resource, socket, sys, threading
kept = []
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(1100)
print("listening", flush=True)
n = int(sys.argv[3])
for _ in range(n):
    kept.append(l.accept()[0])
assert len({c.fileno() for c in kept}) == n
for c in kept:
    c.sendall(b"%08d" % c.fileno())
print("served", flush=True)
kept[0].recv(1)
"""


def a_thousand_connections_under_a_soft_limit_of_1024(faults):
    for limit, count in (("1024:4096", 1000), ("256:256", 220)):
        faults.port += 10
        server = faults.python(ENOUGH, SERVER, faults.port, count, log="many.log", prefix=("prlimit", f"--nofile={limit}"))
        said(server, "listening")
        peers = [faults.lab.connect(faults.port) for _ in range(count)]
        said(server, "served")
        numbers = {peer.recv(8, socket.MSG_WAITALL) for peer in peers}
        assert len(numbers) == count
        for peer in peers:
            peer.close()
        faults.lab.end(server)


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


def limits_of_the_program_do_not_bind_the_host(faults):
    for limit in ("--fsize=0:", "--memlock=65536", "--core=0", "--nproc=10000", "--stack=262144"):
        faults.no_host()
        faults.port += 10
        # Its output goes through a pipe: a file could not grow under --fsize=0.
        piped = ("bash", "-c", f'prlimit {limit} "$@" 2>&1 | cat', "limit")
        server = faults.python(LIMITED, SERVER, faults.port, log="limit.log", prefix=piped)
        said(server, "listening")
        peer = connects(faults)
        echoes(peer, b"w" * 300_000)
        peer.close()
        faults.lab.end(server) if server.poll() is None else None
        assert lines(server) == ["listening"], (limit, lines(server))


def a_hard_limit_on_file_size_is_one_line(faults):
    faults.no_host()
    faults.port += 10
    piped = ("bash", "-c", 'prlimit --fsize=0:0 "$@" 2>&1 | cat', "limit")
    server = faults.python(LIMITED, SERVER, faults.port, log="limit.log", prefix=piped)
    server.wait(20)
    out = lines(server)
    assert len(out) == 2 and out[1] == "errno 99" and "file size" in out[0], out
    # The host that could not serve is not met by the next program.
    server = faults.echo()
    serves(faults)
    faults.lab.end(server)


# As Debian's redis unit: no new privileges, no capabilities, another user, a filter of system calls.
CONFINED = r"""
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def prctl(*words):
    if libc.prctl(*words) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
for capability in range(64):
    if libc.prctl(24, capability, 0, 0, 0) != 0:
        break
uid = int(sys.argv[1])
refused = [int(number) for number in sys.argv[2].split(",") if number]
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
prctl(38, 1, 0, 0, 0)
# BPF: load the number; refuse what is listed with EPERM; allow the rest.
program = [(0x20, 0, 0, 0)]
for number in refused:
    program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
program += [(0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *step) for step in program)
text = ctypes.create_string_buffer(code)
class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
prctl(22, 2, ctypes.byref(Fprog(len(program), ctypes.addressof(text))), 0, 0)
os.execvp(sys.argv[3], sys.argv[3:])
"""
# Not in @system-service: mount, ptrace, bpf, perf, module, swap, reboot, clock, raw-io, keyring (partly); and what only a
# host needs: memfd_create, mlock and its kin, setns, unshare, io_uring.
REFUSED = [
    101, 103, 155, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 174, 175, 176, 246, 272, 298, 304, 308,
    313, 320, 321, 323, 425, 426, 427,
]


def confined(faults, *command, refused=REFUSED, log, env=None, uid=65534):
    path = os.path.join(faults.lab.work, log)
    with contextlib.suppress(OSError):
        os.unlink(path)
    numbers = ",".join(map(str, refused))
    return faults.lab.start("server", "python3", "-c", CONFINED, str(uid), numbers, *command, log=log, env=env)


def a_confined_redis_stays_on_the_kernel_after_one_line(faults):
    """No privileges and a filter: no port can be opened; the line says to use the service."""
    faults.no_host()
    faults.port += 10
    config = os.path.join(faults.lab.work, "confined.conf")
    with open(f"{faults.lab.state}/server.conf", encoding="ascii") as file:
        text = file.read()
    with open(config, "w", encoding="ascii") as file:
        file.write(text)
    os.chmod(config, 0o644)
    os.chmod(faults.lab.work, 0o755)
    folder = os.path.join(faults.lab.work, "confined-run")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chown(folder, 65534, 65534)
    for refused in (REFUSED, REFUSED + [319]):
        confined_redis(faults, config, folder, refused)


def confined_redis(faults, config, folder, refused):
    faults.port += 10
    server = confined(
        faults, "env", f"KNET_CONF={config}", f"KNET_RUN_DIR={folder}", "redis-server", "--port", str(faults.port), "--bind",
        "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", folder, log="confined.log", refused=refused,
    )

    def answers():
        with contextlib.suppress(OSError):
            return faults.lab.connect(faults.port, address="127.0.0.1", end="s")
        return None

    peer = wait_for("Redis answers on the kernel", answers, 20)
    peer.sendall(b"PING\r\n")
    assert peer.recv(7) == b"+PONG\r\n"
    peer.close()
    told = [line for line in lines(server) if line.startswith("knet:")]
    faults.lab.end(server)
    assert len(told) == 1 and "service" in told[0] and "kernel sockets" in told[0], told


def a_confined_program_attaches_to_a_host_that_runs(faults):
    """The calls of the program side need no more than a service has."""
    faults.no_host()
    folder = os.path.join(faults.lab.work, "unix-run")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(faults.lab.work, 0o755)
    config = os.path.join(faults.lab.work, "unix.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write('{"interface": {"vdevs": ["knet_unix,path=%s/wire"], "ip": "%s"}, "proto_stack": {"msl_time": 1}}' % (folder, SERVER))
    os.chmod(config, 0o644)
    os.chown(folder, 65534, 65534)
    env = [f"KNET_CONF={config}", f"KNET_RUN_DIR={folder}", "KNET_LOG=" + os.path.join(folder, "log")]
    code = r"""
import socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], 7001)); l.listen(5)
print("listening", flush=True)
while True:
    c, _ = l.accept()
    while data := c.recv(100000): c.sendall(data)
"""
    talk = r"""
import os, select, socket, sys, threading
c = socket.create_connection((sys.argv[1], 7001), 10)
def read():
    global got
    got = 0
    while got < 3000000:
        part = c.recv(100000)
        if not part: break
        got += len(part)
t = threading.Thread(target=read); t.start()
c.sendall(b"x" * 3000000)
t.join()
e = select.epoll(); e.register(c, select.EPOLLIN)
pid = os.fork()
if pid == 0:
    c.sendall(b"from the child"); os._exit(0)
os.waitpid(pid, 0)
assert e.poll(5)
print("got", got, c.recv(100).decode(), flush=True)
"""
    first = confined(faults, "env", *env, "python3", "-u", "-c", code, SERVER, refused=[], log="first.log")
    said(first, "listening")
    second = confined(faults, "env", *env, "python3", "-u", "-c", talk, SERVER, log="second.log")
    second.wait(30)
    faults.lab.end(first)
    assert lines(second) == ["got 3000000 from the child"], lines(second)


def hidden_dpdk_libraries_are_one_line(faults):
    """No DPDK: the plug-in's libraries are covered by an empty folder in a mount namespace of its own."""
    faults.no_host()
    found = subprocess.run(
        ["sh", "-c", "ldconfig -p | grep -o '/.*librte_eal.*' | head -1"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    assert found, "no DPDK here"
    hide = f"for f in {os.path.dirname(os.path.realpath(found))}/librte_*; do mount --bind /dev/null $f; done; exec \"$@\""
    faults.port += 10
    server = faults.python(
        LIMITED, SERVER, faults.port, log="hidden.log", prefix=("unshare", "-m", "bash", "-c", hide, "hide"),
    )
    server.wait(30)
    out = lines(server)
    assert out[-1] == "errno 99", out
    assert len(out) == 2 and out[0].startswith("knet:") and "libknet_dpdk" in out[0], out


def a_host_of_another_build_is_one_line(faults):
    faults.no_host()
    # The build's version is a text in the binary: another one of the same length.
    build = os.path.dirname(knetctl())
    with open(os.path.join(build, "knetd"), "rb") as file:
        binary = file.read()
    version = subprocess.run([os.path.join(build, "knetd"), "--version"], stdout=subprocess.PIPE, check=True).stdout
    version = version.split()[1].strip()
    assert version in binary
    other = os.path.join(faults.lab.work, "knetd")
    with open(other, "wb") as file:
        file.write(binary.replace(version, b"9" + version[1:]))
    os.chmod(other, 0o755)
    faults.port += 10
    server = faults.python(LIMITED, SERVER, faults.port, log="version.log", env={"KNET_HOST": other})
    server.wait(30)
    out = lines(server)
    assert out[-1] == "errno 99", out
    assert len(out) == 2 and version.decode() in out[0] and "9" + version.decode()[1:] in out[0] and other in out[0], out


def odd(faults, code, log="odd.log", answer=b"fine", **options):
    """Runs a program that listens, takes one connection, does something odd, and says how it was."""
    faults.port += 10
    server = faults.python(ODD + code, SERVER, faults.port, log=log, **options)
    said(server, "listening")
    peer = connects(faults)
    return server, peer


ODD = r"""
import ctypes, errno, os, select, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(600)
def say(*words): os.write(1, (" ".join(map(str, words)) + "\n").encode())
say("listening")
c, _ = l.accept()
def echo(c):
    while data := c.recv(65536): c.sendall(data)
"""


def raw_close_range_takes_our_descriptors_and_nothing_hangs(faults):
    """By a raw system call even the plumbing is closed: the connections may be lost, the program not."""
    code = r"""
keep = c.fileno()
assert libc.syscall(436, max(keep, l.fileno()) + 1, 1 << 20, 0) == 0
say("closed")
try:
    echo(c)
except OSError as error:
    say("lost", error.errno)
# The numbers are reused by something else, which is not written to.
r, w = os.pipe()
many = [os.dup(r) for _ in range(900)]
c.close()
try:
    d, _ = l.accept()
    echo(d)
except OSError as error:
    say("accept", error.errno)
os.set_blocking(r, False)
try:
    say("pipe", len(os.read(r, 100)))
except BlockingIOError:
    say("pipe untouched")
"""
    server, peer = odd(faults, code)
    said(server, "closed")
    with contextlib.suppress(OSError):
        peer.sendall(b"hello")
        peer.recv(5)
    peer.close()
    with contextlib.suppress(OSError):
        other = faults.lab.connect(faults.port, 3)
        with contextlib.suppress(OSError):
            echoes(other)
        other.close()
    server.wait(15)
    assert server.returncode == 0 and "pipe untouched" in lines(server), lines(server)


def closefrom_steps_over_our_descriptors(faults):
    code = r"""
libc.closefrom(max(c.fileno(), l.fileno()) + 1)
say("closed")
echo(c)
c.close()
d, _ = l.accept()
echo(d)
say("fine")
"""
    server, peer = odd(faults, code)
    said(server, "closed")
    echoes(peer)
    peer.close()
    other = connects(faults)
    echoes(other)
    other.close()
    said(server, "fine")


def a_fork_in_a_thread_while_another_receives(faults):
    code = r"""
t = threading.Thread(target=echo, args=(c,))
t.start()
def forks():
    for _ in range(100):
        pid = os.fork()
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
f = threading.Thread(target=forks)
f.start(); f.join()
say("forked")
t.join()
say("fine")
"""
    server, peer = odd(faults, code)
    n = 0
    while "forked" not in lines(server):
        echoes(peer, b"number %d" % n)
        n += 1
    peer.close()
    said(server, "fine")
    assert n > 10


def bad_pointers_are_efault(faults):
    code = r"""
class Iov(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
fd, lfd = c.fileno(), l.fileno()
one = ctypes.c_uint(16)
def call(name, *words):
    ctypes.set_errno(0)
    function = getattr(libc, name)
    function.restype = ctypes.c_ssize_t
    result = function(*words)
    return errno.errorcode.get(ctypes.get_errno(), 0) if result & 0xffffffff == 0xffffffff else result
tests = [
    ("connect", fd, None, 16), ("bind", fd, None, 16), ("getsockname", fd, None, None), ("getpeername", fd, None, None),
    ("getsockname", fd, None, ctypes.byref(one)), ("accept", lfd, None, None),
    ("sendmsg", fd, None, 0), ("recvmsg", fd, None, 0), ("setsockopt", fd, 1, 9, None, 4), ("getsockopt", fd, 1, 9, None, None),
    ("setsockopt", fd, 6, 1, None, 4), ("epoll_ctl", 5555, 1, fd, None), ("poll", None, 1, 0), ("ioctl", fd, 0x541B, None),
    ("epoll_wait", EP, None, 0, 0), ("recv", fd, None, 1, 0x40), ("send", fd, None, 5, 0x40),
    ("readv", fd, None, 1), ("writev", fd, None, 1), ]
"""
    code = code.replace("tests = [", "EP = libc.epoll_create1(0)\nlibc.fcntl(lfd, 4, 0o4000)\ntests = [") + r"""
assert select.select([c], [], [], 10)[0]
for test in tests:
    say(test[0], *call(*test[:]).__repr__().split())
c.setblocking(True)
echo(c)
say("fine")
"""
    server, peer = odd(faults, code)
    peer.sendall(b"waiting")
    time.sleep(0.2)
    echoes_some = peer.recv(100)
    assert echoes_some in (b"waiting",), echoes_some
    peer.close()
    said(server, "fine")
    out = lines(server)
    # The same on a kernel listener and a kernel connection.
    kernel = subprocess.run(
        ["python3", "-c", (ODD + code).replace("l.bind((sys.argv[1], int(sys.argv[2])))", "l.bind(('127.0.0.1', 0))").replace(
            "c, _ = l.accept()",
            "p = socket.create_connection(l.getsockname()); p.send(b'waiting'); c, _ = l.accept(); p.shutdown(1)", 1)],
        stdout=subprocess.PIPE, text=True, timeout=20, check=True,
    ).stdout.splitlines()
    assert out == kernel, [pair for pair in zip(out, kernel) if pair[0] != pair[1]]


def exec_with_open_connections(faults):
    """Inherited by exec, an accelerated connection goes on in the new program, which may write and then end it."""
    code = r"""
c.set_inheritable(True)
say("executes")
os.execvp("python3", ["python3", "-c", "import os,sys\ntry:\n  n = os.write(%d, b'x')\n  print('wrote', n, flush=True)\n"
    "except OSError as error:\n  print('errno', error.errno, flush=True)\nimport time; time.sleep(1)" % c.fileno()])
"""
    server, peer = odd(faults, code)
    said(server, "executes")
    peer.settimeout(20)
    assert peer.recv(10) == b"x", "what the new program writes"
    assert peer.recv(10) == b"", "its end"
    server.wait(20)
    out = lines(server)
    assert "wrote 1" in out, out


def other_user_and_root_after_bind(faults):
    code = r"""
os.mkdir("jail") if not os.path.exists("jail") else None
os.chroot("jail"); os.chdir("/")
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
t = threading.Thread(target=echo, args=(c,)); t.start()
d, _ = l.accept()
echo(d)
t.join()
m = socket.socket()
try:
    m.bind((sys.argv[1], int(sys.argv[2]) + 1)); m.listen(5)
    say("another")
except OSError as error:
    say("errno", error.errno)
"""
    server, peer = odd(faults, code)
    echoes(peer)
    other = connects(faults)
    echoes(other)
    other.close()
    peer.close()
    server.wait(10)
    assert "another" in lines(server), lines(server)


def daemon_after_listen(faults):
    code = r"""
libc.daemon(1, 1)
t = threading.Thread(target=echo, args=(c,)); t.start()
d, _ = l.accept()
echo(d)
t.join()
say("fine")
"""
    server, peer = odd(faults, code)
    echoes(peer)
    other = connects(faults)
    echoes(other)
    other.close()
    peer.close()
    # The one that was started has ended: the daemon goes on.
    wait_for("the daemon is fine", lambda: "fine" in lines(server))


def duplicates_above_700(faults):
    code = r"""
made = []
refused = 0
for number in list(range(690, 760)) + [1000, 1023]:
    try:
        assert os.dup2(c.fileno(), number) == number, number
        made.append(number)
    except OSError as error:
        # One of ours: said so, and not harmed.
        assert error.errno == errno.EBUSY and number >= 700, error
        refused += 1
assert refused < 16, refused
c.close()
for number in made[:3] + made[-4:]:
    d = socket.socket(fileno=number)
    data = d.recv(5, socket.MSG_WAITALL)
    d.sendall(data)
    d.close()
e, _ = l.accept()
echo(e)
for number in range(690, 760):
    try: os.close(number)
    except OSError: pass
for number in (1000, 1023):
    try: os.close(number)
    except OSError: pass
say("fine")
"""
    server, peer = odd(faults, code)
    for _ in range(7):
        echoes(peer)
    other = connects(faults)
    echoes(other)
    other.close()
    said(server, "fine")
    peer.settimeout(5)
    assert peer.recv(1) == b"", "the last duplicate was closed"
    peer.close()


def three_hundred_threads_in_recv_at_once(faults):
    code = r"""
threading.stack_size(256 * 1024)
threads = []
for _ in range(300):
    d, _ = l.accept()
    t = threading.Thread(target=echo, args=(d,)); t.start(); threads.append(t)
say("all")
for t in threads: t.join()
echo(c)
say("fine")
"""
    server, peer = odd(faults, code)
    peers = [faults.lab.connect(faults.port) for _ in range(300)]
    said(server, "all")
    for turn in range(3):
        for n, other in enumerate(peers):
            other.sendall(b"%04d%d" % (n, turn))
        for n, other in enumerate(peers):
            assert other.recv(5, socket.MSG_WAITALL) == b"%04d%d" % (n, turn)
        time.sleep(0.3)
    for other in peers:
        other.close()
    echoes(peer)
    peer.close()
    said(server, "fine")


def twenty_thousand_short_connections_leave_nothing_behind(faults):
    server = faults.echo()
    program = faults.pids("python3")[0]

    def facts():
        host = faults.host()
        out = []
        for pid in (program, host):
            with open(f"/proc/{pid}/status", encoding="ascii") as status:
                rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            out += [rss, len(os.listdir(f"/proc/{pid}/fd"))]
        return out

    def burst(count):
        linger = struct.pack("ii", 1, 0)
        with faults.lab.inside("c"):
            for n in range(count):
                peer = socket.socket()
                if n % 2:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                peer.settimeout(20)
                peer.connect((SERVER, faults.port))
                peer.sendall(b"hello")
                assert peer.recv(5) == b"hello"
                peer.close()

    burst(4000)
    first = facts()
    burst(16_000)
    # TIME-WAIT is over after 2 x msl_time.
    time.sleep(3)
    last = facts()
    print("program KiB, descriptors, host KiB, descriptors:", first, last, flush=True)
    assert last[0] - first[0] < 2048 and last[2] - first[2] < 4096, (first, last)
    assert last[1] <= first[1] and last[3] <= first[3], (first, last)
    stats = faults.lab.stats()
    begun = stats.get("syns_received", 0) + stats.get("flows_connecting", 0)
    assert begun - stats["flows_freed"] <= 1, stats
    faults.lab.end(server)


def a_redis_whose_host_was_killed_is_restarted(faults):
    """Its clients are reset at once; it neither hangs nor crashes, and its successor serves."""
    faults.port += 10
    command = ("redis-server", "--port", str(faults.port), "--bind", SERVER, "--protected-mode", "no", "--save", "")
    server = faults.lab.start("server", *command, log="redis-lost.log")
    peer = connects(faults)
    peer.sendall(b"PING\r\n")
    assert peer.recv(7) == b"+PONG\r\n"
    pid = faults.pids("redis-server")[0]
    os.kill(faults.host(), signal.SIGKILL)
    time.sleep(2)
    assert server.poll() is None
    with contextlib.suppress(ConnectionResetError):
        # The next host knows nothing of the connection.
        peer.settimeout(1)
        with contextlib.suppress(TimeoutError):
            peer.sendall(b"PING\r\n")
            assert peer.recv(7) == b""
    os.kill(pid, signal.SIGTERM)
    server.wait(10)
    assert server.returncode == 0, server.returncode
    server = faults.lab.start("server", *command, log="redis-lost.log")
    peer = connects(faults)
    peer.sendall(b"PING\r\n")
    assert peer.recv(7) == b"+PONG\r\n"
    peer.close()
    faults.lab.end(server)


def a_redis_is_served_again_after_its_host_was_killed(faults):
    faults.port += 10
    for bind in (SERVER, "0.0.0.0"):
        command = ("redis-server", "--port", str(faults.port), "--bind", bind, "--protected-mode", "no", "--save", "")
        server = faults.lab.start("server", *command, log="redis-again.log")

        def answers(address=SERVER, end="c"):
            with contextlib.suppress(OSError):
                peer = faults.lab.connect(faults.port, 3, address, end)
                peer.sendall(b"PING\r\n")
                assert peer.recv(7) == b"+PONG\r\n"
                return peer
            return None

        wait_for("Redis answers", answers)
        pid = faults.pids("redis-server")[0]
        for _ in range(3):
            old = faults.host()
            os.kill(old, signal.SIGKILL)
            if bind == "0.0.0.0":
                assert answers("127.0.0.1", "s")
            before = faults.lab.kernel_tcp()
            wait_for("Redis answers", answers)
            assert faults.host() != old and faults.pids("redis-server") == [pid]
            assert faults.lab.kernel_tcp()["PassiveOpens"] == before["PassiveOpens"]
        out = lines(server)
        assert not [line for line in out if "Accepting client connection" in line], out
        faults.lab.end(server)


def nginx_workers_are_served_again_after_their_host_was_killed(faults):
    """They share the listener, and nginx has cleared its environment: the config is found all the same."""
    faults.port += 10
    config = os.path.join(faults.lab.work, "nginx-again.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write(
            f"user root; daemon off; worker_processes 2; pid {config}.pid; error_log {config}.log;\n"
            "events { worker_connections 512; }\n"
            f"http {{ access_log off; server {{ listen {SERVER}:{faults.port}; location / {{ return 200 'served'; }} }} }}\n"
        )
    server = faults.lab.start("server", "nginx", "-c", config, log="nginx-again.out")

    def gets():
        with contextlib.suppress(OSError):
            peer = faults.lab.connect(faults.port, 3)
            peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
            text = b""
            while part := peer.recv(1000):
                text += part
            return text.endswith(b"served")
        return False

    wait_for("nginx answers", gets)
    for _ in range(2):
        old = faults.host()
        os.kill(old, signal.SIGKILL)
        wait_for("nginx answers", gets)
        assert faults.host() != old
    # Whoever listens ends, and the other one takes over; then both are new.
    master, *workers = sorted(faults.pids("nginx"))
    assert len(workers) == 2, workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        wait_for("nginx answers", gets)
    assert master in faults.pids("nginx")
    out = lines(server)
    with open(f"{config}.log", encoding="utf-8") as log:
        out += log.read().splitlines()
    assert not [line for line in out if "accept" in line or "no share" in line], out
    faults.lab.end(server)


@contextlib.contextmanager
def memory_group(name):
    """A control group with a memory controller: its folder, and the file that limits it. None when there is no such thing."""
    folder = limit = None
    for parent, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        with contextlib.suppress(OSError):
            os.mkdir(os.path.join(parent, name))
            if os.path.exists(os.path.join(parent, name, file)):
                folder, limit = os.path.join(parent, name), os.path.join(parent, name, file)
                break
            os.rmdir(os.path.join(parent, name))
    try:
        yield (folder, limit) if folder else None
    finally:
        if folder:
            def gone():
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                return not os.path.exists(folder)

            wait_for("the group is empty", gone, 20)


HOARDS = r"""
import socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(500)
print("listening", flush=True)
kept = []
while True:
    c, _ = l.accept()
    kept.append(c)
    if len(kept) == 1:
        c.sendall(b"first")
"""


def a_full_memory_cgroup_harms_the_host_at_most(faults):
    """Connections that nobody reads fill the group: the kernel ends somebody in it, and that is not the program."""
    faults.no_host()
    with memory_group(f"knet-{os.getpid()}") as group:
        if group is None:
            return "no memory controller of control groups can be used here"
        folder, limit = group
        faults.port += 10
        # The groups are not to be seen in a network namespace of ip(8): it waits to be put there.
        go = os.path.join(faults.lab.work, "go")
        waits = ("sh", "-c", f'while [ ! -e {go} ]; do sleep 0.02; done; exec "$@"', "waits")
        server = faults.python(HOARDS, SERVER, faults.port, log="hoards.log", prefix=waits)
        try:
            pid = wait_for("it waits", lambda: faults.pids("sh"))[0]
            with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(pid))
            with open(go, "w", encoding="ascii"):
                pass
            said(server, "listening")
            peer = connects(faults)
            assert peer.recv(5) == b"first"
            old = faults.host()
            with open(limit.replace("limit_in_bytes", "usage_in_bytes").replace("memory.max", "memory.current"), encoding="ascii") as file:
                used = int(file.read())
            with open(limit, "w", encoding="ascii") as file:
                file.write(str(used + (8 << 20)))
            peers = []
            try:
                for _ in range(200):
                    peers.append(faults.lab.connect(faults.port, 1))
                    peers[-1].setblocking(False)
                    peers[-1].send(bytes(250_000))
            except OSError:
                # The host was ended.
                pass
            for other in [peer, *peers]:
                other.close()
            time.sleep(1)
            assert server.poll() is None, (server.returncode, lines(server))
            with open(limit, "w", encoding="ascii") as file:
                file.write(str(used + (512 << 20)))
            connects(faults).close()
            told = [line for line in lines(server) if line.startswith("knet:")]
            if faults.host() != old:
                assert any("has gone" in line for line in told) and any("listened on again" in line for line in told), told
        finally:
            faults.lab.end(server)
            faults.no_host()
    return None


AT_ONCE = r"""
import os, signal, socket, sys, time
def listen(port):
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((sys.argv[1], port))
    l.listen(5)
    return l
# The children are of one family with us, or each attaches alone.
anchor = listen(int(sys.argv[2]) + 1) if sys.argv[3] == "family" else None
for n in range(200):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = listen(int(sys.argv[2]))
            os.write(w, b"listens")
        except OSError as error:
            os.write(w, b"errno %d" % error.errno)
        time.sleep(100)
    said = os.read(r, 100)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(r); os.close(w)
    if said != b"listens":
        print(n, said.decode(), flush=True)
print("done", flush=True)
"""


def a_killed_listener_can_be_replaced_at_once(faults):
    for kind in ("family", "alone"):
        faults.port += 10
        server = faults.python(AT_ONCE, SERVER, faults.port, kind, log="at-once.log")
        server.wait(60)
        assert lines(server) == ["done"], (kind, lines(server))


def the_interface_is_deleted_while_running(faults):
    """No connection can go on: all are reset at once and the host ends; with the interface back a new one serves."""
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    host = faults.host()
    faults.ip("s", "link", "del", "veth0")
    said(server, "lost 104", 5)
    assert server.poll() is None
    wait_for("the host ends", lambda: host not in faults.pids("knetd"), 5)
    with open(f"{faults.lab.state}/server-host.log", encoding="utf-8", errors="replace") as log:
        told = log.read()
    faults.lab.end(server)
    peer.close()
    subprocess.run(
        ["ip", "link", "add", "veth0", "netns", f"knet-{faults.lab.name}-s", "type", "veth", "peer", "name", "veth0", "netns",
         f"knet-{faults.lab.name}-c"], check=True)
    subprocess.run(
        ["ip", "netns", "exec", f"knet-{faults.lab.name}-c", "ethtool", "-K", "veth0", "tx", "off"], check=True,
        stdout=subprocess.DEVNULL)
    faults.ip("s", "link", "set", "veth0", "up")
    faults.ip("c", "addr", "add", f"{CLIENT}/24", "dev", "veth0")
    faults.ip("c", "link", "set", "veth0", "up")
    assert [line for line in lines(server) if line.startswith("knet:") and "has gone" in line], lines(server)
    assert "veth0" in told and "gone" in told, told[-500:]
    # The old host has the old interface: a server started now must not be given to it.
    server = faults.echo_again()
    assert faults.host() != host
    serves(faults)
    faults.lab.end(server)


def a_server_restarted_with_another_config_is_served_at_once(faults):
    """The host that lingers for the old config gives the port up."""
    server = faults.echo()
    host = faults.host()
    connects(faults).close()
    faults.lab.end(server)
    path = f"{faults.lab.state}/server.conf"
    with open(path, encoding="ascii") as file:
        text = file.read()
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text.replace('"common": {', '"common": { "spin_us": 60,'))
        server = faults.echo_again()
        assert faults.host() != host
        peer = connects(faults)
        echoes(peer)
        # One that serves somebody does not give way.
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        other = faults.python(LIMITED, SERVER, faults.port + 1, log="other.log")
        other.wait(20)
        out = lines(other)
        assert len(out) == 2 and "is driven by another host" in out[0] and out[1] == "errno 99", out
        echoes(peer)
        peer.close()
        faults.lab.end(server)
    finally:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)


CASES = [
    a_killed_host_resets_every_connection_at_once, a_restarted_server_gets_a_fresh_host_after_a_killed_one,
    a_host_killed_ten_times_is_replaced_every_time, a_program_that_never_sleeps_hears_of_the_hosts_end,
    a_listener_comes_back_with_the_next_host, without_a_host_a_lost_listener_costs_nothing,
    new_sockets_wait_for_a_host_where_the_config_says_so, a_stopped_host_loses_nothing, a_stopped_program_loses_nothing,
    a_killed_program_ends_its_connections_as_linux_does, a_host_without_client_ends_after_linger, link_down_and_up,
    mtu_of_the_interface_changed, interface_renamed_while_running, connect_answers_as_the_network_does,
    the_address_on_a_kernel_interface_is_refused, an_interface_with_other_addresses_is_refused_unless_exclusive,
    garbage_frames_are_counted_and_dropped, random_frames_harm_nobody, a_syn_flood_of_20_000_sources,
    resets_and_syns_in_the_window_are_challenged, an_arp_flood_does_not_push_out_the_gateway,
    the_address_of_another_station_is_counted_and_told, the_peers_mac_changes,
    no_number_left_in_the_middle_of_accept, a_thousand_connections_under_a_soft_limit_of_1024,
    limits_of_the_program_do_not_bind_the_host, a_confined_redis_stays_on_the_kernel_after_one_line,
    a_confined_program_attaches_to_a_host_that_runs, hidden_dpdk_libraries_are_one_line,
    a_host_of_another_build_is_one_line, a_hard_limit_on_file_size_is_one_line,
    raw_close_range_takes_our_descriptors_and_nothing_hangs, closefrom_steps_over_our_descriptors,
    a_fork_in_a_thread_while_another_receives, bad_pointers_are_efault, exec_with_open_connections,
    other_user_and_root_after_bind, daemon_after_listen, duplicates_above_700, three_hundred_threads_in_recv_at_once,
    twenty_thousand_short_connections_leave_nothing_behind, a_redis_whose_host_was_killed_is_restarted,
    a_redis_is_served_again_after_its_host_was_killed, nginx_workers_are_served_again_after_their_host_was_killed,
    a_killed_listener_can_be_replaced_at_once, a_full_memory_cgroup_harms_the_host_at_most, the_interface_is_deleted_while_running,
    a_server_restarted_with_another_config_is_served_at_once,
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
