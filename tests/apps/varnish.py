#!/usr/bin/env python3
"""varnish under the shim in front of an origin on the kernel: hits, misses, streams, a lost origin, a lost child."""

import http.client
import os
import signal

from harness import CLIENT, SERVER, Lab, main, reached, served, together, wait_for
from origin import Origin, content

PORT, ORIGIN = 6081, 9000


class Varnish:
    def __init__(self):
        self.lab = Lab()
        os.chmod(self.lab.work, 0o755)
        self.origin = Origin(self.lab, ORIGIN)
        self.server = self.lab.start(
            "server", "varnishd", "-F", "-j", "none", "-n", os.path.join(self.lab.work, "varnish"), "-a", f"{SERVER}:{PORT}",
            "-b", f"{CLIENT}:{ORIGIN}", "-s", "malloc,64m", "-p", "thread_pools=2", "-p", "thread_pool_min=10", log="varnish.log",
        )
        wait_for("varnish answers", self.answers, 30)

    @property
    def processes(self):
        return self.lab.processes

    def answers(self):
        try:
            return self.get("/up")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def open(self):
        client = http.client.HTTPConnection(SERVER, PORT)
        client.sock = self.lab.connect(PORT, 30.0)
        client.auto_open = False
        return client

    def get(self, path, client=None):
        mine = client or self.open()
        mine.request("GET", path)
        answer = mine.getresponse()
        body = answer.read()
        if not client:
            mine.close()
        return answer.status, body

    def close(self):
        self.origin.close()
        self.lab.close()


def every_size_is_asked_for_once(varnish):
    with served(varnish.lab, 3), reached(varnish.lab, 0):
        sizes = (1, 1_460, 65_536, 5_000_000)
        for turn in range(3):
            client = varnish.open()
            for size in sizes:
                assert varnish.get(f"/size/{size}", client) == (200, content(size)), (turn, size)
            client.close()
    asked = [path for path in varnish.origin.asked if path in {f"/size/{size}" for size in sizes}]
    assert sorted(asked) == sorted(f"/size/{size}" for size in sizes), asked


def many_clients(varnish):
    def ask(n):
        client = varnish.open()
        for turn in range(20):
            size = 1_000 + turn
            assert varnish.get(f"/size/{size}", client) == (200, content(size))
        client.close()

    with served(varnish.lab, 40), reached(varnish.lab, 0):
        together(40, ask)


def a_connection_each(varnish):
    with served(varnish.lab, 200):
        for _ in range(200):
            assert varnish.get("/size/1460") == (200, content(1_460))


def the_origin_goes_and_comes_back(varnish):
    with served(varnish.lab, 3), reached(varnish.lab):
        varnish.origin.close()
        assert varnish.get("/size/777")[0] == 503
        assert varnish.get("/size/1460") == (200, content(1_460)), "from the cache"
        varnish.origin = Origin(varnish.lab, ORIGIN)
        wait_for("the origin is asked again", lambda: varnish.get("/size/778") == (200, content(778)))


def the_child_is_killed(varnish):
    """The manager starts another one, which serves the listener that both hold."""
    manager = varnish.server.pid
    with open(f"/proc/{manager}/task/{manager}/children", encoding="ascii") as file:
        child = int(file.read().split()[0])
    os.kill(child, signal.SIGKILL)
    wait_for("another child answers", varnish.answers, 20)
    with served(varnish.lab, 10):
        for size in range(10):
            assert varnish.get(f"/size/{size}") == (200, content(size))


CASES = [every_size_is_asked_for_once, many_clients, a_connection_each, the_origin_goes_and_comes_back, the_child_is_killed]

if __name__ == "__main__":
    main("varnish", CASES, Varnish, Varnish.close)
