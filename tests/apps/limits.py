#!/usr/bin/env python3
"""100 000 connections of one process, a descriptor each; and short connections to nginx, after which nothing has grown.

More of them than `ab` can make are in short_connections.py.
"""

import os
import resource
import select
import socket
import subprocess
import time

from harness import SERVER, Lab, main, served, wait_for

LONG = os.environ.get("KNET_TEST_LONG") == "1"
WANTED = int(os.environ.get("KNET_TEST_HELD", 100_000))
# How many times as long everything may take.
SLOW = int(os.environ.get("KNET_TEST_SLOW", 1))
SHORT = int(os.environ.get("KNET_TEST_SHORT", 200_000 if LONG else 20_000))


def allowed(descriptors):
    """The limit of this process and its children, raised as far as it can be."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, max(descriptors, hard)))
        return descriptors
    except ValueError:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard


# Connections under way: a slow machine's port loses of more, and they are sent again all at once.
AT_ONCE = 1_000 // SLOW
# Without CAP_SYS_RESOURCE as many as there may be.
HELD = min(WANTED, allowed(WANTED + 1_000) - 1_000)
PORTS = (7001, 7002, 7003, 7004)
WEB = 8080

# An echo server that raises its own limit, and greets whom it has accepted.
CODE = f"""
import resource, select, socket
resource.setrlimit(resource.RLIMIT_NOFILE, ({HELD + 500}, {HELD + 500}))
ready = select.epoll()
sockets = {{}}
for port in {PORTS}:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("{SERVER}", port))
    s.listen(4096)
    s.setblocking(False)
    ready.register(s, select.EPOLLIN)
    sockets[s.fileno()] = s
listeners = set(sockets)
while True:
    for fd, event in ready.poll():
        s = sockets[fd]
        if fd in listeners:
            try:
                while True:
                    peer, _ = s.accept()
                    peer.setblocking(False)
                    peer.send(b"!")
                    ready.register(peer, select.EPOLLIN)
                    sockets[peer.fileno()] = peer
            except BlockingIOError:
                continue
        try:
            data = s.recv(4096)
        except ConnectionResetError:
            # The kernel keeps no more than so many closed sockets of its own waiting for their end.
            data = b""
        if data:
            s.send(data)
        else:
            del sockets[fd]
            s.close()
"""

NGINX = """
daemon off; master_process off; pid {work}/nginx.pid; error_log {work}/nginx.log; user root;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  server {{ listen {server}:8080 backlog=1024; location / {{ return 200 "knet"; }} }}
}}
"""


class Limits:
    def __init__(self):
        self.lab = Lab()
        self.lab.configure('"max_tcpcb": 24000', f'"max_tcpcb": {HELD + 10_000}')
        with self.lab.inside(), open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as file:
            file.write("1024 65535")

    @property
    def processes(self):
        return self.lab.processes

    def host(self):
        """The pid of the server's host."""
        return next(int(line.split()[1]) for line in self.lab.run("status").splitlines() if line.startswith("process "))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def settled(pid):
    """Descriptors once the connections that only looked are closed."""
    counts = [0]

    def same():
        counts.append(descriptors(pid))
        time.sleep(0.2)
        return len(set(counts[-4:])) == 1

    wait_for("the descriptors settle", same, 10 * SLOW)
    return counts[-1]


def rarely(what, condition, seconds):
    """As `wait_for`, for a condition that costs much to look at."""
    wait_for(what, lambda: condition() or time.sleep(0.2 * SLOW), seconds)


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1])


def dial(limits, count):
    """Sockets that the server has accepted, as many at a time as its backlog takes, with the ports in turn."""
    peers, under_way, ready, failed = [], {}, select.epoll(), []
    with limits.lab.inside():
        while len(peers) + len(failed) < count:
            while len(under_way) < AT_ONCE and len(peers) + len(under_way) < count:
                peer = socket.socket()
                peer.setblocking(False)
                peer.connect_ex((SERVER, PORTS[(len(peers) + len(under_way)) % len(PORTS)]))
                under_way[peer.fileno()] = peer
                ready.register(peer, select.EPOLLIN)
            for fd, _ in ready.poll(30 * SLOW, 1_000) or failed.append("nothing in time") or []:
                peer = under_way.pop(fd)
                ready.unregister(peer)
                try:
                    assert peer.recv(1) == b"!"
                    peers.append(peer)
                except OSError as error:
                    failed.append(os.strerror(error.errno))
            assert not failed, (len(peers), failed[:3])
    return peers


def what_is_left(limits):
    """What both ends say of connections that do not end."""
    stats = limits.lab.stats()
    words = ("freed", "accepted", "timed_out", "dropped", "reset", "failed", "refused", "missed")
    host = {name: count for name, count in stats.items() if count and any(word in name for word in words)}
    with limits.lab.inside():
        kernel = subprocess.run(["ss", "-s"], stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()[:2]
    return f"the host counts {host}, the clients' kernel says {kernel}"


def close(limits, peers, are_left):
    """All in one instant; on a slow machine some at a time: a kernel whose FIN nobody acknowledges, because an emulated machine loses
    them by the thousand, gives up its end after 100 s and tells nobody."""
    at_a_time = len(peers) if SLOW == 1 else 5_000
    for first in range(0, len(peers), at_a_time):
        some = peers[first : first + at_a_time]
        for peer in some:
            peer.close()
        left, begin = len(peers) - first - len(some), time.monotonic()
        try:
            rarely(f"all but {left} are closed", lambda: are_left(left), 60 * SLOW)
        except AssertionError as error:
            raise AssertionError(f"{error}: {what_is_left(limits)}") from None
        if at_a_time == len(peers):
            print(f"{at_a_time} connections that were closed at once had ended {time.monotonic() - begin:.1f} s later", flush=True)


def one_descriptor_a_connection(limits):
    server = limits.lab.start("server", "/usr/bin/python3", "-c", CODE, log="echo.log")
    for port in PORTS:
        wait_for("the server listens", lambda: limits.lab.listens(port), 15 * SLOW)
    before, begin = settled(server.pid), time.monotonic()
    host = limits.host()
    steps = []

    def step(what):
        """What was reached after how long, and with what."""
        sizes = f"{resident_kib(server.pid) >> 10} MiB of the program, {resident_kib(host) >> 10} of the host"
        steps.append(f"{what} after {time.monotonic() - begin:.0f} s with {descriptors(server.pid)} descriptors, {sizes}")

    step("listening")
    with served(limits.lab, HELD):
        peers = dial(limits, HELD)
        rarely("all are accepted", lambda: descriptors(server.pid) >= before + HELD, 60 * SLOW)
        made = time.monotonic() - begin
        # The one that waits in epoll_wait may have brought an eventfd.
        assert descriptors(server.pid) <= before + HELD + 4, descriptors(server.pid) - before
        step("accepted")
        for first in range(0, HELD, 10_000):
            for n, peer in enumerate(peers[first : first + 10_000], first):
                peer.send(b"%d" % n)
            for n, peer in enumerate(peers[first : first + 10_000], first):
                peer.setblocking(True)
                assert peer.recv(100) == b"%d" % n
        size = resident_kib(host) + resident_kib(server.pid)
        step("answered")
        print(f"{HELD} connections in {made:.1f} s, {size / HELD:.1f} KiB each in program and host", flush=True)
        close(limits, peers, lambda left: descriptors(server.pid) <= before + left + 4)
    step("closed")
    # A ring keeps its first page for the next connection: those that come now cost nothing.
    with served(limits.lab, 1_000):
        for peer in dial(limits, 1_000):
            peer.close()
    rarely("these are closed too", lambda: descriptors(server.pid) <= before + 4, 20 * SLOW)
    step("closed another 1000")
    print("\n".join(steps), flush=True)
    after = resident_kib(host) + resident_kib(server.pid)
    assert after <= size + 1_024, f"{size} KiB, and {after} after all were closed and some came again"
    limits.lab.end(server)
    return f"{HELD} of {WANTED} were held: ulimit -Hn cannot be raised (vm_limits.py holds them)" if HELD < WANTED else None


def short_connections_leave_nothing(limits):
    config = os.path.join(limits.lab.work, "nginx.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write(NGINX.format(work=limits.lab.work, server=SERVER))
    server = limits.lab.start("server", "nginx", "-c", config, log="nginx.out")
    wait_for("nginx listens", lambda: limits.lab.listens(WEB), 15)
    host = limits.host()
    samples = []
    with served(limits.lab, SHORT):
        for _ in range(10):
            out = limits.lab.client(
                "ab", "-q", "-c", "20", "-n", str(SHORT // 10), f"http://{SERVER}:{WEB}/", seconds=60 + SHORT // 10_000
            )
            assert "Failed requests:        0\n" in out, out
            # What the last ones left behind is gone after the sweep and TIME-WAIT.
            time.sleep(2.5 if LONG else 0.5)
            stats = limits.lab.stats()
            lent = stats["port.buffers"] - stats["port.buffers_free"]
            samples.append([
                descriptors(server.pid), descriptors(host), lent, resident_kib(server.pid), resident_kib(host),
                stats["ring_bytes"] >> 10, (stats["send_buffer_bytes"] - stats["send_buffer_bytes_free"]) >> 10,
            ])
    print(f"{SHORT} short connections: descriptors of nginx and host, buffers of the port that are in use, KiB of nginx, host, rings, "
          f"send buffers in use: {samples[0]} after a tenth, {samples[4]} after half, {samples[-1]} at the end", flush=True)
    # The first tenth warms up: tables and buffers reach their size.
    for n, (first, last) in enumerate(zip(samples[1], samples[-1])):
        # Frames under way come and go: a burst in each direction.
        room = 64 if n == 2 else max(4, first // 10 if first > 1_000 else 0)
        assert last <= first + room, samples
    limits.lab.end(server)


if __name__ == "__main__":
    main("limits", [one_descriptor_a_connection, short_connections_leave_nothing], Limits, lambda limits: limits.lab.close())
