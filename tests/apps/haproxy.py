#!/usr/bin/env python3
"""haproxy with two threads under the shim: TCP and HTTP, health checks, backends and clients on the kernel."""

import collections
import contextlib
import hashlib
import http.client
import os
import signal
import threading

from harness import CLIENT, SERVER, Lab, certificate, main, reached, served, together, wait_for
from origin import Origin, content

HTTP, TCP, SECURE, STATS = 8080, 8081, 8443, 8404

CONFIG = """
global
  nbthread 2
  maxconn 2000
  stats socket {work}/haproxy.sock mode 600 level admin expose-fd listeners
defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  retries 2
  option redispatch
frontend web
  mode http
  bind {server}:8080
  bind {server}:8443 ssl crt {work}/both.pem alpn h2,http/1.1
  default_backend origins
frontend relay
  mode tcp
  bind {server}:8081
  default_backend relayed
backend origins
  mode http
  balance roundrobin
  option httpchk GET /healthy
  default-server inter 200ms fall 2 rise 2
  server one {client}:9001 check
  server two {client}:9002 check
backend relayed
  mode tcp
  balance roundrobin
  default-server inter 200ms fall 2 rise 2
  server one {client}:9001 check
  server two {client}:9002 check
"""


class Haproxy:
    def __init__(self):
        self.lab = Lab()
        self.origins = {name: Origin(self.lab, port, name) for name, port in (("one", 9001), ("two", 9002))}
        work = self.lab.work
        self.cert, key = certificate(work)
        with open(os.path.join(work, "both.pem"), "wb") as both:
            for path in (self.cert, key):
                with open(path, "rb") as part:
                    both.write(part.read())
        self.conf = os.path.join(work, "haproxy.cfg")
        with open(self.conf, "w", encoding="ascii") as file:
            file.write(CONFIG.format(work=work, server=SERVER, client=CLIENT))
        self.server = None
        self.start()

    def start(self, *options):
        self.server = self.lab.start("server", "haproxy", "-db", *options, "-f", self.conf, log="haproxy.log")
        wait_for("both origins are up", lambda: self.names(10) == {"one", "two"}, 15)

    @property
    def processes(self):
        return self.lab.processes

    def open(self, port=HTTP):
        client = http.client.HTTPConnection(SERVER, port)
        client.sock = self.lab.connect(port, 30.0)
        client.auto_open = False
        return client

    def get(self, path, client=None, port=HTTP, **options):
        mine = client or self.open(port)
        mine.request(options.pop("method", "GET"), path, **options)
        answer = mine.getresponse()
        body = answer.read()
        if not client:
            mine.close()
        return answer.status, body

    def names(self, count, port=HTTP):
        """Who answers."""
        try:
            return {self.get("/name", port=port)[1].decode().split()[0] for _ in range(count)}
        except (OSError, http.client.HTTPException):
            return set()

    def close(self):
        for origin in self.origins.values():
            origin.close()
        self.lab.close()


def http_of_every_size(haproxy):
    with served(haproxy.lab), reached(haproxy.lab, 2):
        client = haproxy.open()
        for size in (0, 1, 1_460, 65_536, 5_000_000):
            assert haproxy.get(f"/size/{size}", client) == (200, content(size)), size
            got = haproxy.get("/", client, method="POST", body=content(size))
            assert got == (200, hashlib.sha256(content(size)).hexdigest().encode()), size
        client.close()


def many_clients_with_both_threads(haproxy):
    seen = collections.Counter()

    def ask(n):
        for mode in (HTTP, TCP):
            client = haproxy.open(mode)
            for turn in range(20):
                status, body = haproxy.get(f"/{n}/{turn}", client)
                assert status == 200 and body.decode().endswith(f" /{n}/{turn}"), body
                seen[body.split()[0]] += 1
            client.close()

    with served(haproxy.lab, 40), reached(haproxy.lab, 20):
        together(20, ask)
    assert sum(seen.values()) == 800 and len(seen) == 2, seen


def a_connection_each(haproxy):
    with served(haproxy.lab, 400), reached(haproxy.lab, 200):
        for port in (HTTP, TCP):
            assert haproxy.names(200, port) == {"one", "two"}


def tls_and_http_2(haproxy):
    with served(haproxy.lab, 2), reached(haproxy.lab):
        for version, shown in (("--http1.1", "1.1"), ("--http2", "2")):
            words = [word for n in range(20) for word in ("-o", "/dev/null", f"https://{SERVER}:{SECURE}/size/{n * 10_000}")]
            out = haproxy.lab.client(
                "curl", "--no-progress-meter", "--fail", version, "--cacert", haproxy.cert, "-Z", "-w", "%{http_version} %{size_download}\n", *words
            )
            assert sorted(out.splitlines()) == sorted(f"{shown} {n * 10_000}" for n in range(20)), out


def health_checks(haproxy):
    """An origin that says no, one that is gone, and both of them back: the clients notice nothing."""
    with served(haproxy.lab, 20), reached(haproxy.lab, 10):
        one = haproxy.origins["one"]
        one.healthy = False
        wait_for("one is taken out", lambda: haproxy.names(8) == {"two"})
        one.healthy = True
        wait_for("one is back", lambda: haproxy.names(8) == {"one", "two"})
        one.close()
        assert "one" not in haproxy.names(8), "refused connections go to the other one"
        wait_for("the relay knows too", lambda: haproxy.names(8, TCP) == {"two"})
        haproxy.origins["one"] = Origin(haproxy.lab, 9001, "one")
        wait_for("one is back again", lambda: haproxy.names(8) == haproxy.names(8, TCP) == {"one", "two"})


def a_soft_stop_lets_requests_end(haproxy):
    client = haproxy.open()
    assert haproxy.get("/before", client)[0] == 200
    client.request("POST", "/", body=None, headers={"Content-Length": "5"})
    haproxy.server.send_signal(signal.SIGUSR1)
    wait_for("nobody new gets in", lambda: not haproxy.names(1))
    client.sock.sendall(b"hello")
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (200, hashlib.sha256(b"hello").hexdigest().encode())
    client.close()
    haproxy.server.wait(10)
    haproxy.start()


def a_new_process_takes_the_listeners_over(haproxy):
    """`-x`: the old process passes them over its admin socket; no connection is refused, cut or left waiting. With inline progress
    the old process is the host: its end cuts all connections, and the new process then listens by itself (docs/inline.md)."""
    before, old = haproxy.lab.stats(), haproxy.server
    inline = haproxy.lab.progress == "inline"
    stop, asked, faults = threading.Event(), [0] * 4, []

    def load(n):
        while not stop.is_set():
            try:
                assert haproxy.get(f"/{n}", port=(HTTP, TCP)[n % 2])[0] == 200
                asked[n] += 1
            except (OSError, AssertionError, http.client.HTTPException) as error:
                faults.append(repr(error))

    threads = [threading.Thread(target=load, args=(n,)) for n in range(4)]
    # A new host counts anew.
    with contextlib.nullcontext() if inline else served(haproxy.lab, 40), contextlib.nullcontext() if inline else reached(haproxy.lab, 20):
        for thread in threads:
            thread.start()
        try:
            wait_for("there is load", lambda: min(asked) > 5)
            haproxy.start("-x", os.path.join(haproxy.lab.work, "haproxy.sock"), "-sf", str(old.pid))
            old.wait(15)
            if inline:
                wait_for("the new process serves alone", lambda: haproxy.names(8) == {"one", "two"}, 15)
                assert haproxy.names(100) == haproxy.names(100, TCP) == {"one", "two"}
                faults.clear()
                return
            at = list(asked)
            wait_for("the load goes on", lambda: faults or all(now > then + 5 for now, then in zip(asked, at)))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not faults, (len(faults), faults[:3], sum(asked))
    made = haproxy.lab.stats()["listeners_made"] - before["listeners_made"]
    assert made == 0, f"{made} listeners are new"
    assert haproxy.server.poll() is None


CASES = [
    http_of_every_size, many_clients_with_both_threads, a_connection_each, tls_and_http_2, health_checks, a_soft_stop_lets_requests_end,
    a_new_process_takes_the_listeners_over,
]

if __name__ == "__main__":
    main("haproxy", CASES, Haproxy, Haproxy.close)
