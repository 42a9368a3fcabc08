#!/usr/bin/env python3
"""A server's host with an lcore on each of two CPUs (core_list_global), on af_packet: both carry connections."""

import contextlib
import json
import os
import subprocess

from harness import ROOT, SERVER, CLIENT, Lab, main, passive_opens_unmoved, reached, wait_for
from redis import Resp, answers

PORT = 6379
CONNECTIONS = 48
LONG = "KNET_TEST_LONG" in os.environ


class Lcores:
    """A lab whose server has two lcores; each case starts what it needs."""

    def __init__(self):
        self.lab = None
        self.processes = []

    def up(self, queues=None):
        self.down()
        cpus = sorted(os.sched_getaffinity(0))[:2]
        self.lab = Lab(cpus=",".join(map(str, cpus)))
        self.processes = self.lab.processes
        if queues is not None:
            port = f'"vdevs": ["net_af_packet0,iface=veth0,qdisc_bypass=1,qpairs={queues}"]'
            self.lab.configure('"netdev": "veth0"', port)

    def down(self):
        if self.lab is not None:
            self.lab.close()
            self.lab = None

    def redis(self):
        self.lab.start(
            "server", "redis-server", "--port", str(PORT), "--bind", SERVER, "--protected-mode", "no", "--save", "",
            "--dir", self.lab.work, log="redis.log",
        )
        wait_for("redis answers PING", lambda: answers(self.client), 30)

    def driver(self):
        """A stand-in for the GPU driver's library; its path."""
        library = os.path.join(self.lab.work, "libcuda.so.1")
        source = os.path.join(ROOT, "tests", "gpu", "standin.c")
        flags = ["-std=gnu11", "-O1", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", library, source, "-lpthread", "-lm"], check=True)
        return library

    def client(self, timeout=20.0):
        return Resp(self.lab.connect(PORT, timeout))

    def by_lcore(self):
        """What each lcore of the server's host carries."""
        run = os.path.join(self.lab.state, "run-s")
        sockets = [name for name in os.listdir(run) if name.startswith("host-") and name.endswith(".sock")]
        assert len(sockets) == 1, sockets
        kinds = (os.environ.get("KNET_BUILD", "release"), "debug")
        tool = next(filter(os.path.exists, (os.path.join(ROOT, "target", kind, "knetctl") for kind in kinds)))
        told = subprocess.run(
            [tool, "status", "--json", "--socket", os.path.join(run, sockets[0])],
            check=True, stdout=subprocess.PIPE, text=True, timeout=20,
        )
        (host,) = json.loads(told.stdout)
        return host["open"]["lcores"]


def requests(lcores, connections, rounds):
    """Connections that all stay open, each of which asks and is answered."""
    clients = [lcores.client() for _ in range(connections)]
    for n in range(rounds):
        for number, client in enumerate(clients):
            client.send("SET", f"k{number}", f"v{number}-{n}")
            client.send("GET", f"k{number}")
        for number, client in enumerate(clients):
            assert client.reply() == "OK"
            assert client.reply() == f"v{number}-{n}".encode()
    return clients


def both_carry(lcores):
    before, accepted = lcores.lab.kernel_tcp(), lcores.lab.stats().get("flows_accepted", 0)
    clients = requests(lcores, CONNECTIONS, 20 if LONG else 5)
    told = lcores.by_lcore()
    print(" ".join(f"cpu={it['cpu']} flows={it['flows']} accepted={it['flows_accepted']} passed={it['frames_passed']}" for it in told))
    assert len(told) == 2, told
    assert sum(lcore["flows"] for lcore in told) >= CONNECTIONS
    for lcore in told:
        # By hash: each has its part, which is seldom exactly a half.
        assert lcore["flows"] >= CONNECTIONS // 8, told
        assert lcore["frames_dropped_ring_full"] == 0, told
    passive_opens_unmoved(lcores.lab, before, accepted, CONNECTIONS)
    for client in clients:
        client.close()
    return told


def redis_on_two_queues(lcores):
    lcores.up()
    lcores.redis()
    told = both_carry(lcores)
    assert all(lcore["tx_frames"] > CONNECTIONS for lcore in told), told
    # A value of many segments, through either.
    value = os.urandom(1 << 20)
    for _ in range(4):
        client = lcores.client()
        assert client.ask("SET", "big", value) == "OK"
        assert client.ask("GET", "big") == value
        client.close()


def redis_on_one_queue(lcores):
    lcores.up(queues=1)
    lcores.redis()
    first, other = both_carry(lcores)
    assert first["frames_passed"] > CONNECTIONS and other["frames_passed"] == 0, (first, other)


OUT = """
import socket, sys
socks = []
for n in range(int(sys.argv[1])):
    s = socket.create_connection((%r, 7200), 20)
    s.sendall(b"%%4d" %% n)
    socks.append(s)
for n, s in enumerate(socks):
    assert s.recv(4) == b"%%4d" %% n
""" % CLIENT

ECHO = """
import socket, threading
s = socket.create_server((%r, 7200), backlog=128)
print("ready", flush=True)
def serve(c):
    while data := c.recv(4096):
        c.sendall(data)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
""" % CLIENT


@contextlib.contextmanager
def host_log(lcores):
    """Shows what the host said, when something goes wrong inside."""
    try:
        yield
    except BaseException:
        with open(os.path.join(lcores.lab.state, "server-host.log"), encoding="utf-8") as log:
            print(log.read()[-3000:])
        raise


def connections_that_are_begun_here(lcores):
    """Ports are chosen so that the replies come to the lcore that asked; nothing is reset."""
    lcores.up()
    echo = lcores.lab.start("client", "python3", "-c", ECHO, log="echo.log")
    wait_for("the echo server listens", lambda: "ready" in open(echo.log, encoding="utf-8").read(), 20)
    with reached(lcores.lab, CONNECTIONS), host_log(lcores):
        lcores.lab.shimmed("python3", "-c", OUT, str(CONNECTIONS))
        # The host lingers: its counters are still there.
        told = lcores.by_lcore()
    print(" ".join(f"cpu={it['cpu']} connected={it['flows_connected']}" for it in told))
    assert all(lcore["flows_connected"] >= CONNECTIONS // 4 for lcore in told), told
    assert lcores.lab.stats().get("resets_sent_no_flow", 0) == 0


def a_payload_stage_at_each_lcore(lcores):
    """A stand-in for the GPU's driver holds up whoever takes anything of it while a kernel stays: all is taken before."""
    for more in ({}, {"mode": "persistent", "required": True, "timeout_us": 10_000_000}):
        lcores.up()
        lab = lcores.lab
        rules = os.path.join(lab.work, "rules")
        with open(rules, "w", encoding="ascii") as file:
            file.write("forbidden\n")
        if more:
            more["driver_library"] = lcores.driver()
        path = os.path.join(lab.state, "server.conf")
        with open(path, encoding="ascii") as file:
            config = json.load(file)
        config["gpu"] = {"enabled": True, "pipeline": [{"kernel": "pattern", "patterns_file": rules}, {"kernel": "stats"}], **more}
        with open(path, "w", encoding="ascii") as file:
            json.dump(config, file)
        lcores.redis()
        told = both_carry(lcores)
        clients = [lcores.client() for _ in range(CONNECTIONS)]
        for client in clients:
            client.send("SET", "k", "so forbidden")
        for client in clients:
            try:
                answer = client.reply()
            except ConnectionResetError:
                continue
            raise AssertionError(f"a forbidden request was answered: {answer}")
        stats = lab.stats()
        assert stats["payload_flows_reset"] == CONNECTIONS, stats
        if more:
            assert stats["payload_gpu_on"] == len(told) == 2, stats
            assert stats["payload_chunks_offloaded"] > 2 * CONNECTIONS and "payload_chunks_redone" not in stats, stats


def nginx_with_a_listener_for_each_worker(lcores):
    """SO_REUSEPORT: each worker's listener has an lcore of its own, and both serve."""
    lcores.up()
    folder = lcores.lab.work
    conf = os.path.join(folder, "nginx.conf")
    with open(conf, "w", encoding="utf-8") as file:
        file.write(
            f"daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;\n"
            "events { worker_connections 256; }\n"
            f"http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n"
            f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
            f"server {{ listen {SERVER}:8080 reuseport; location / {{ return 200 $pid; }} }} }}\n"
        )
    lcores.lab.start("server", "nginx", "-p", folder, "-c", conf, log="nginx.log")

    def ask(_=None):
        peer = lcores.lab.connect(8080, 10.0)
        peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while part := peer.recv(65536):
            answer += part
        peer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), answer
        return body

    def answers():
        try:
            return bool(ask())
        except OSError:
            return False

    wait_for("nginx answers", answers, 30)
    before, accepted = lcores.lab.kernel_tcp(), lcores.lab.stats().get("flows_accepted", 0)
    workers = {ask() for _ in range(CONNECTIONS)}
    assert len(workers) == 2, workers
    passive_opens_unmoved(lcores.lab, before, accepted, CONNECTIONS)
    told = lcores.by_lcore()
    assert all(lcore["flows_accepted"] >= CONNECTIONS // 8 for lcore in told), told


CASES = [
    redis_on_two_queues, redis_on_one_queue, connections_that_are_begun_here, a_payload_stage_at_each_lcore,
    nginx_with_a_listener_for_each_worker,
]

if __name__ == "__main__":
    if len(os.sched_getaffinity(0)) < 2:
        for case in CASES:
            print(f"SKIP lcores::{case.__name__}: one CPU")
    else:
        main("lcores", CASES, Lcores, lambda lcores: lcores.down())
