#!/usr/bin/env python3
"""Servers that go on with the next host after theirs was killed. Needs root."""

import contextlib
import os
import signal
import time

from faults_parts import answers, connects, knetctl, lines, main_of, said
from harness import SERVER, wait_for


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


CASES = [
    a_listener_comes_back_with_the_next_host, without_a_host_a_lost_listener_costs_nothing,
    a_redis_whose_host_was_killed_is_restarted, a_redis_is_served_again_after_its_host_was_killed,
    nginx_workers_are_served_again_after_their_host_was_killed, a_killed_listener_can_be_replaced_at_once,
]

if __name__ == "__main__":
    main_of("faults_revival", CASES)
