#!/usr/bin/env python3
"""Inline progress: the program's own threads drive the stack. On af_packet with a kernel client, and over vhost with DPDK
and inline progress at both ends. Needs root."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from harness import CLIENT, ROOT, SERVER, Lab, main, passive_opens_unmoved, wait_for

PORT = 7200


class Inline:
    """A lab whose ends are inline, and the counting server."""

    def __init__(self):
        self.lab = Lab("af_packet", progress="inline")
        self.waits = os.path.join(self.lab.work, "waits")
        source = os.path.join(ROOT, "tests", "c", "waits.c")
        # Only time-outs count as sent again: a loaded machine answers too late for a tail-loss probe.
        with self.lab.inside("c"), open("/proc/sys/net/ipv4/tcp_early_retrans", "w", encoding="ascii") as file:
            file.write("0")
        subprocess.run(["cc", "-O1", "-Wall", "-o", self.waits, source, "-lpthread"], check=True)

    @property
    def processes(self):
        return self.lab.processes

    @contextlib.contextmanager
    def serve(self, threads=1, *options, lab=None, before=()):
        lab = lab or self.lab
        server = lab.start(
            "server", *before, self.waits, SERVER, str(PORT), str(threads), *options, log=f"waits{time.monotonic_ns()}",
        )
        wait_for("it listens", lambda: log_of(server).count("listening ") == threads, 15)
        try:
            yield server
        finally:
            lab.end(server)


def log_of(process):
    with open(process.log, encoding="utf-8", errors="replace") as log:
        return log.read()


def counted(server):
    """What the counting server said at its end."""
    found = re.search(r"waits (\d+) echoes (\d+) interrupted (\d+)", log_of(server))
    assert found, log_of(server)
    return dict(zip(("waits", "echoes", "interrupted"), map(int, found.groups())))


def echo(peer, data):
    peer.sendall(data)
    got = b""
    while len(got) < len(data):
        more = peer.recv(len(data) - len(got))
        assert more, "the server closed"
        got += more
    assert got == data


def program_of(server):
    """The process that runs the program: the runner execs all the way."""
    return server.pid


def threads_of(pid):
    names = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as comm:
            names.append(comm.read().strip())
    return names


def no_host_but_the_program(inline):
    before, accepted = inline.lab.kernel_tcp(), inline.lab.stats().get("flows_accepted", 0)
    with inline.serve() as server:
        names = threads_of(program_of(server))
        assert "knet-control" in names and "knet-helper" in names, names
        pids = subprocess.run(
            ["ip", "netns", "pids", f"knet-{inline.lab.name}-s"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
        for pid in pids:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as comm:
                assert not comm.read().startswith("knetd"), "a host process runs"
        peers = [inline.lab.connect(PORT) for _ in range(20)]
        for round_ in range(20):
            for peer in peers:
                echo(peer, b"x%d" % round_ * 100)
        passive_opens_unmoved(inline.lab, before, accepted, 20)
        for peer in peers:
            peer.close()
    assert counted(server)["echoes"] == 400


def a_signal_ends_a_wait_and_the_peer_is_told(inline):
    for busy in (False, True):
        with inline.serve() as server:
            peer = inline.lab.connect(PORT)
            echo(peer, b"hello")
            if not busy:
                time.sleep(0.3)
            begin = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.wait(10)
            assert peer.recv(1) == b"", "the end of the stream"
            assert time.monotonic() - begin < 5
        assert counted(server)["interrupted"] == 1, log_of(server)


def sent_again(peer):
    """Segments that the peer's own socket had to send again (tcpi_total_retrans): what it sends to servers that are gone is not counted."""
    return struct.unpack_from("I", peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]


def a_computing_program_acknowledges(inline):
    with inline.serve():
        peer = inline.lab.connect(PORT)
        echo(peer, b"warm")
        for _ in range(2):
            # A second of computing, in which the peer sends what the window takes.
            data = b"C" + b"y" * 12_000
            peer.sendall(data)
            more = b"z" * 30_000
            peer.sendall(more)
            begin = time.monotonic()
            # SIOCOUTQ: bytes that are not acknowledged.
            wait_for("everything is acknowledged", lambda: outq(peer) == 0, 0.9)
            assert time.monotonic() - begin < 0.9
            left = len(data) + len(more)
            while left:
                got = peer.recv(65536)
                assert got
                left -= len(got)
        assert sent_again(peer) == 0, "the peer had to send again"
        peer.close()


def outq(peer):
    return struct.unpack("i", fcntl.ioctl(peer.fileno(), 0x5411, b"\0\0\0\0"))[0]


def round_trips(lab, ports, seconds):
    """Times of round trips to all ports at a time, in seconds; and what the peers had to send again."""
    peers = [lab.connect(port) for port in ports]
    times = []

    def one(peer):
        mine, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.monotonic()
            echo(peer, b"ping")
            mine.append(time.monotonic() - begin)
            time.sleep(0.002)
        times.extend(mine)

    threads = [threading.Thread(target=one, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = sum(map(sent_again, peers))
    for peer in peers:
        peer.close()
    times.sort()
    return times, again


def eight_threads_and_one_that_computes(inline):
    ports = [PORT + n for n in range(8)]
    tail = {}
    for options in ((), ("compute",)):
        with inline.serve(8, *options):
            times, again = round_trips(inline.lab, ports, 2.0)
            assert again == 0, "a peer had to send again"
            tail[options] = times[len(times) * 99 // 100]
            print(
                f"  {len(times)} round trips, p50 {times[len(times) // 2] * 1e6:.0f} us, p99 {tail[options] * 1e6:.0f} us"
                f"{' with a computing thread' if options else ''}",
                file=sys.stderr,
            )
            # No time limit is a test: only that nobody waited for the end of a computation.
            assert times[-1] < 0.9, times[-5:]


def idle_costs_nothing(inline):
    with inline.serve() as server:
        peer = inline.lab.connect(PORT)
        echo(peer, b"x")

        def used():
            with open(f"/proc/{program_of(server)}/stat", encoding="ascii") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        time.sleep(0.2)
        before = used()
        time.sleep(3)
        spent = used() - before
        assert spent <= 0.15, f"{spent} s of CPU in 3 s"
        echo(peer, b"still there")
        peer.close()


CHILDREN = r"""
import os, socket, sys
address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((address, port))
l.listen(64)
def serve():
    while True:
        c, _ = l.accept()
        while True:
            data = c.recv(4096)
            if not data:
                break
            c.sendall(data)
        c.close()
if how == "workers":
    for _ in range(2):
        if os.fork() == 0:
            serve()
    print("ready", flush=True)
    os.wait()
if how == "daemon":
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.write(1, b"child %d\n" % os.getpid())
    serve()
"""


def forked_workers_serve(inline):
    server = inline.lab.start("server", "python3", "-c", CHILDREN, SERVER, str(PORT), "workers", log="workers")
    wait_for("ready", lambda: "ready" in log_of(server), 15)
    before, accepted = inline.lab.kernel_tcp(), inline.lab.stats().get("flows_accepted", 0)
    peers = [inline.lab.connect(PORT) for _ in range(2)]
    for _ in range(50):
        for peer in peers:
            echo(peer, b"from a worker")
    passive_opens_unmoved(inline.lab, before, accepted, 2)
    for peer in peers:
        peer.close()
    # All of them at once: the group is the test's own.
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(10)


def a_daemon_listens_again(inline):
    """As documented: the stack lived in the parent, which exits. The child's listener is taken over by a host that it starts."""
    server = inline.lab.start("server", "python3", "-c", CHILDREN, SERVER, str(PORT), "daemon", log="daemon")
    server.wait(15)
    wait_for("it listens again", lambda: "is listened on again" in log_of(server), 20)
    peer = inline.lab.connect(PORT)
    echo(peer, b"served by a private host")
    assert log_of(server).count("has gone") == 1, log_of(server)
    assert inline.lab.stats().get("flows_accepted", 0) >= 1
    peer.close()
    child = int(re.search(r"child (\d+)", log_of(server)).group(1))
    os.kill(child, signal.SIGTERM)
    # The host that it has started gives way to the next program's.
    wait_for("it is gone", lambda: not os.path.exists(f"/proc/{child}"), 10)


CLOSES = r"""
import os, socket, sys
address, port = sys.argv[1], int(sys.argv[2])
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((address, port))
l.listen(8)
low = [n for n in map(int, os.listdir("/proc/self/fd")) if 3 <= n < 700]
print("low", low, l.fileno(), flush=True)
keep = l.fileno()
os.closerange(3, keep)
os.closerange(keep + 1, 4096)
for n in range(3, 1100):
    if n != keep:
        try:
            os.close(n)
        except OSError:
            pass
try:
    os.dup2(2, 705)
except OSError:
    pass
print("closed", flush=True)
while True:
    c, _ = l.accept()
    while True:
        data = c.recv(4096)
        if not data:
            break
        c.sendall(data)
    c.close()
"""


def a_program_that_closes_everything(inline):
    server = inline.lab.start("server", "python3", "-c", CLOSES, SERVER, str(PORT), log="closes")
    wait_for("closed", lambda: "closed" in log_of(server), 15)
    low = json.loads(re.search(r"low (\[.*?\])", log_of(server)).group(1))
    assert len(low) <= 4, f"descriptors of ours among the program's: {low}"
    peer = inline.lab.connect(PORT)
    for _ in range(20):
        echo(peer, b"still here")
        time.sleep(0.02)
    peer.close()
    inline.lab.end(server)


def kill_9_and_restart(inline):
    """As documented: no FIN. What is left of the connection is reset by the next program."""
    with inline.serve() as server:
        peer = inline.lab.connect(PORT)
        echo(peer, b"x")
        os.kill(server.pid, signal.SIGKILL)
        server.wait(10)
    with inline.serve():
        again = inline.lab.connect(PORT)
        echo(again, b"served at once")
        again.close()
        with contextlib.suppress(BrokenPipeError):
            peer.sendall(b"?")
        try:
            assert peer.recv(1) == b"", "answered"
        except ConnectionResetError:
            pass


def redis_over_vhost(inline):
    """Redis and its clients, both ends inline, over vhost and virtio_user."""
    lab = Lab("vhost", progress="inline")
    try:
        server = lab.start(
            "server", "redis-server", "--port", "6379", "--bind", SERVER, "--protected-mode", "no", "--save", "",
            "--dir", lab.work, log="redis",
        )
        wait_for("ready", lambda: "Ready to accept" in log_of(server), 15)
        before, accepted = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0)
        assert "PONG" in lab.client("redis-cli", "-h", SERVER, "ping")
        out = lab.client("redis-benchmark", "-h", SERVER, "-t", "set,get", "-c", "50", "-n", "50000", "-q", seconds=60)
        found = re.findall(r"(SET|GET): ([0-9.]+) requests per second, p50", out.replace("\r", "\n"))
        assert len(found) == 2, out
        print(f"  {found}", file=sys.stderr)
        assert "Background" in lab.client("redis-cli", "-h", SERVER, "bgsave")
        wait_for("saved", lambda: "terminated with success" in log_of(server), 15)
        passive_opens_unmoved(lab, before, accepted, 100)
        lab.end(server)
        # The port's socket went with the program: the next one finds its place free.
        server = lab.start(
            "server", "redis-server", "--port", "6379", "--bind", SERVER, "--protected-mode", "no", "--save", "",
            "--dir", lab.work, log="redis2",
        )
        wait_for("ready again", lambda: "Ready to accept" in log_of(server), 15)
        assert "PONG" in lab.client("redis-cli", "-h", SERVER, "ping")
    finally:
        lab.close()


CLIENT_ROUNDS = r"""
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for _ in range(int(sys.argv[3])):
    s.sendall(b"ping")
    assert s.recv(10) == b"ping"
s.close()
"""


def perform(family, case):
    """A case of tests/conformance by a program with the stack inside: its status, and what it said. In a lab of its own, since a
    program finds the private host that the child of another one has started."""
    lab = Lab(progress="inline")
    try:
        program = os.path.join(lab.work, family)
        source = os.path.join(ROOT, "tests", "conformance", f"{family}.c")
        subprocess.run(["gcc", "-O1", "-o", program, source, "-pthread"], check=True)
        process = lab.start("server", program, "both", SERVER, str(PORT), case, log=case)
        return process.wait(40), log_of(process)
    finally:
        lab.close()


FROM_A_PORT = r"""
import os, socket, sys, time
to = (sys.argv[1], int(sys.argv[2]))
# The first one starts the host.
first = socket.create_connection(to)
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[3], 41000))
begin = time.monotonic()
s.connect(to)
took = time.monotonic() - begin
s.sendall(b"ping")
assert s.recv(10) == b"ping"
print("connected in", took, flush=True)
os.kill(os.getpid(), 9)
"""


def a_client_that_was_killed_connects_at_once_from_its_port(inline):
    """Over vhost: its stack died with it and the server's still has the connection, which a second SYN alone would meet again."""
    lab = Lab("vhost", progress="inline")
    try:
        with inline.serve(1, lab=lab):
            for round_ in range(3):
                out = lab.client("python3", "-c", FROM_A_PORT, SERVER, str(PORT), CLIENT, check=False, seconds=20)
                took = float(re.search(r"connected in (\S+)", out).group(1))
                print(f"  {took * 1000:.2f} ms", file=sys.stderr)
                # The timer of the SYN is a second.
                assert took < 0.9, out
                assert lab.stats().get("challenge_acks_sent", 0) >= round_, "the connections have met"
    finally:
        lab.close()


def an_exit_handler_joins_threads_that_wait(_):
    """The stack ends first: threads that wait for the kernel's descriptors, or with a time-out, still come back from their waits."""
    status, said = perform("threads", "an_exit_handler_joins_threads_that_wait")
    assert status == 0, said


def a_file_size_limit_ends_no_program(_):
    """The stack's memory would be a file behind the limit: the program goes on with the kernel, which has no such address."""
    _, said = perform("executing", "a_small_file_size_limit_ends_nobody")
    assert "errno 27; kernel sockets are used" in said and "EADDRNOTAVAIL" in said, said


def system_calls_of_a_wait(inline):
    """Over vhost: one pair of signal-mask calls a wait, nothing in recv and send."""
    if shutil.which("strace") is None:
        return "there is no strace"
    lab = Lab("vhost", progress="inline")
    try:
        # strace makes a call a hundred times as long: neither grace nor spinning must end by that.
        lab.configure('"progress"', '"inline_grace_us": 500000, "spin_us": 500000, "progress"')
        trace = os.path.join(lab.work, "trace")
        rounds = 500
        with inline.serve(1, lab=lab, before=("strace", "-f", "-qq", "-o", trace)) as server:
            lab.client("python3", "-c", CLIENT_ROUNDS, SERVER, str(PORT), str(rounds))
            # strace would keep the signal for itself.
            os.kill(int(re.search(r"process (\d+)", log_of(server)).group(1)), signal.SIGTERM)
            server.wait(20)
        counts = counted(server)
        assert counts["echoes"] == rounds
        with open(trace, encoding="utf-8", errors="replace") as lines:
            calls = [line.split(None, 1) for line in lines]
        main_thread = calls[0][0]
        mine = [text for pid, text in calls if pid == main_thread]
        begin = next(n for n, text in enumerate(mine) if "listening" in text)
        mine = mine[begin:]
        names = [re.match(r"(\w+)\(", text).group(1) for text in mine if re.match(r"\w+\(", text)]
        count = {name: names.count(name) for name in sorted(set(names))}
        print(f"  {counts['waits']} waits: {count}", file=sys.stderr)
        waits = counts["waits"]
        # A wait of more than 10 ms lets go for a moment.
        assert count.get("rt_sigprocmask", 0) <= 3 * waits + 200, count
        assert not any(name in count for name in ("recvfrom", "sendto", "recvmsg", "epoll_pwait")), count
        assert count.get("epoll_wait", 0) <= 10, count
        # Each sleep on the port is one ppoll.
        assert count.get("ppoll", 0) <= 2 * waits + 40, count
    finally:
        lab.close()


CASES = [
    no_host_but_the_program, a_signal_ends_a_wait_and_the_peer_is_told, a_computing_program_acknowledges,
    eight_threads_and_one_that_computes, idle_costs_nothing, forked_workers_serve,
    a_daemon_listens_again, a_program_that_closes_everything, kill_9_and_restart,
    redis_over_vhost, an_exit_handler_joins_threads_that_wait, a_client_that_was_killed_connects_at_once_from_its_port,
    a_file_size_limit_ends_no_program, system_calls_of_a_wait,
]

if __name__ == "__main__":
    main("inline", CASES, Inline, lambda inline: inline.lab.close())
