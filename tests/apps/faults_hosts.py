#!/usr/bin/env python3
"""What happens when the host of a running server breaks, is replaced or cannot be had. Needs root."""

import os
import signal
import subprocess
import time

from faults_parts import LIMITED, PORT, connects, echoes, knetctl, lines, main_of, said, serves
from harness import SERVER


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


# Listens anew at each host, and keeps an epoll, and what the second host left of a connection.
LIVES = r"""
import select, socket, sys
e = select.epoll()
kept = None
n = 0
while True:
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((sys.argv[1], int(sys.argv[2])))
    l.listen(8)
    e.register(l, select.EPOLLIN)
    if n == 0:
        print("listening", flush=True)
    e.poll()
    c, _ = l.accept()
    c.sendall(b"%02d" % n)
    e.unregister(l)
    e.register(c, select.EPOLLIN)
    assert [fd for fd, _ in e.poll(20)] == [c.fileno()]
    try:
        c.recv(1)
    except ConnectionResetError:
        print("reset", n, flush=True)
    if n == 34:
        try:
            kept.send(b"x")
        except OSError as error:
            print("kept", error.errno, flush=True)
    if n == 1:
        kept = c
        e.unregister(c)
    else:
        c.close()
    l.close()
    n += 1
"""
LIVED = 36


def a_program_outlives_any_number_of_hosts(faults):
    """A process has places for 32 hosts: those of which nothing is left are used again (attach/link.rs)."""
    faults.port += 10
    server = faults.python(LIVES, SERVER, faults.port, log="lives.log")
    said(server, "listening")
    program = faults.pids("python3")[0]
    held = []
    for n in range(LIVED):
        # The first host may have served a case before.
        before = faults.lab.stats().get("flows_accepted", 0) if n == 0 else 0
        peer = connects(faults)
        assert peer.recv(2) == b"%02d" % n
        with open(f"/proc/{program}/status", encoding="ascii") as status:
            rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        held.append((rss, len(os.listdir(f"/proc/{program}/fd"))))
        accepted = faults.lab.stats()["flows_accepted"]
        assert accepted == before + 1, f"host {n} has accepted {accepted}, {before} before"
        os.kill(faults.host(), signal.SIGKILL)
        said(server, f"reset {n}")
        peer.close()
    print(f"KiB and descriptors after 10 hosts {held[10]}, {held[20]} after 20, {held[-1]} after {LIVED}", flush=True)
    assert held[-1][0] <= held[20][0] + 1024 and held[-1][1] <= held[10][1] + 4, held
    assert "kept 32" in lines(server), lines(server)
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


def a_host_without_client_ends_after_linger(faults):
    server = faults.echo()
    faults.host()
    faults.lab.end(server)
    time.sleep(1)
    assert faults.pids("knetd"), "it lingers for a restarted server"
    faults.no_host()


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
    a_host_killed_ten_times_is_replaced_every_time, a_program_outlives_any_number_of_hosts,
    a_program_that_never_sleeps_hears_of_the_hosts_end,
    new_sockets_wait_for_a_host_where_the_config_says_so, a_stopped_host_loses_nothing,
    a_host_without_client_ends_after_linger, hidden_dpdk_libraries_are_one_line, a_host_of_another_build_is_one_line,
    a_server_restarted_with_another_config_is_served_at_once,
]

if __name__ == "__main__":
    main_of("faults_hosts", CASES)
