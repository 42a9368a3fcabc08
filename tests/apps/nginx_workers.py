#!/usr/bin/env python3
"""nginx with a master and four workers under the shim: reload under load, a worker killed, accept_mutex on and off."""

import collections
import os
import signal
import threading
import time

from harness import SERVER, Lab, main, served, together, wait_for

PORT = 8080

CONFIG = """
daemon off; pid {work}/nginx.pid; error_log {work}/nginx.log; worker_processes 4; user root;
events {{ worker_connections 1024; accept_mutex {mutex}; accept_mutex_delay 20ms; }}
http {{
  access_log off; client_body_temp_path {work}/body; proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi; uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  server {{ listen {server}:8080 backlog=1024{listen}; location / {{ return 200 "{text} $pid\\n"; }} }}
}}
"""


class Workers:
    def __init__(self):
        self.lab = Lab()
        os.chmod(self.lab.work, 0o755)
        self.conf = os.path.join(self.lab.work, "nginx.conf")
        self.server, self.listen = None, ""
        self.start()

    @property
    def processes(self):
        return self.lab.processes

    def configure(self, **words):
        words = {"mutex": "off", "listen": self.listen, "text": "one", **words}
        with open(self.conf, "w", encoding="ascii") as file:
            file.write(CONFIG.format(work=self.lab.work, server=SERVER, **words))

    def start(self, **words):
        self.configure(**words)
        self.server = self.lab.start("server", "nginx", "-c", self.conf, log="nginx.out")
        wait_for("nginx answers", self.answers, 15)

    def restart(self, **words):
        self.lab.end(self.server)
        self.start(**words)

    def answers(self):
        try:
            return self.ask()[0] == "one"
        except OSError:
            return False

    def ask(self, peer=None):
        """What the config says and the worker's pid: over a connection of its own, or over `peer`."""
        mine = peer or self.lab.connect(PORT)
        close = b"" if peer else b"Connection: close\r\n"
        mine.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + close + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"\n"):
            part = mine.recv(65_536)
            if not part:
                raise ConnectionResetError("closed without an answer")
            answer += part
        if not peer:
            assert mine.recv(1) == b""
            mine.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"200 OK" in head, head
        text, pid = body.decode().split()
        return text, int(pid)

    @property
    def master(self):
        with open(os.path.join(self.lab.work, "nginx.pid"), encoding="ascii") as file:
            return int(file.read())

    def workers(self):
        with open(f"/proc/{self.master}/task/{self.master}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}


class Load:
    """Clients with a connection a request, until stopped: what they saw, and what failed."""

    def __init__(self, web, clients=8):
        self.web = web
        self.stop = threading.Event()
        self.seen = collections.Counter()
        self.failed = []
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(clients)]

    def run(self):
        while not self.stop.is_set():
            try:
                self.seen[self.web.ask()] += 1
            except (OSError, AssertionError) as error:
                self.failed.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def every_worker_serves(web):
    with served(web.lab, 400):
        seen = collections.Counter()
        # Held open, so that a worker which has many leaves the next ones to others.
        peers = [web.lab.connect(PORT) for _ in range(400)]
        lock = threading.Lock()

        def ask(n):
            for peer in peers[n::8]:
                _, pid = web.ask(peer)
                with lock:
                    seen[pid] += 1

        together(8, ask)
        for peer in peers:
            peer.close()
    assert sum(seen.values()) == 400 and set(seen) <= web.workers(), seen
    assert len(seen) >= 2, f"one worker did everything: {seen}"


def reload_under_load(web):
    """Six reloads, each with other words in the answers: no request fails."""
    with served(web.lab, 100), Load(web) as load:
        for turn in range(6):
            old = web.workers()
            web.configure(text=f"turn{turn}")
            os.kill(web.master, signal.SIGHUP)
            wait_for("the new words are served", lambda: load.seen and any(text == f"turn{turn}" for text, _ in list(load.seen)))
            wait_for("the old workers end", lambda: not old & web.workers(), 20)
    assert not load.failed, (len(load.failed), sum(load.seen.values()), load.failed[:3])
    old = web.workers()
    web.configure()
    os.kill(web.master, signal.SIGHUP)
    wait_for("the first config is back", lambda: web.ask()[0] == "one" and not old & web.workers())


def a_worker_is_killed(web):
    """Its own connections break; everybody else is served, and the master's next worker too."""
    with served(web.lab, 50):
        for _ in range(3):
            held = {}
            for _ in range(40):
                peer = web.lab.connect(PORT)
                held[peer] = web.ask(peer)[1]
            victim = collections.Counter(held.values()).most_common()[-1][0]
            os.kill(victim, signal.SIGKILL)
            wait_for("another worker is there", lambda: victim not in web.workers() and len(web.workers()) == 4)
            for peer, pid in held.items():
                if pid == victim:
                    try:
                        assert peer.recv(1) == b""
                    except ConnectionResetError:
                        pass
                else:
                    assert web.ask(peer)[1] == pid
                peer.close()
            with Load(web) as load:
                time.sleep(0.5)
            assert load.seen and not load.failed, load.failed[:3]


def accept_mutex(web):
    web.restart(mutex="on")
    with served(web.lab, 200), Load(web) as load:
        time.sleep(2)
    assert not load.failed, load.failed[:3]
    assert sum(load.seen.values()) >= 200, load.seen
    reload_under_load(web)
    web.restart()


def reuseport(web):
    """A listener for each worker, among which the stack spreads the connections."""
    web.restart(listen=" reuseport")
    with served(web.lab, 400):
        seen = collections.Counter(web.ask()[1] for _ in range(400))
    assert set(seen) == web.workers(), (seen, web.workers())
    assert min(seen.values()) >= 40, f"spread unevenly: {seen}"
    web.listen = " reuseport"
    reload_under_load(web)
    web.listen = ""
    web.restart()


def no_process_is_left(web):
    workers = web.workers()
    os.kill(web.master, signal.SIGQUIT)
    web.server.wait(10)
    assert web.server.returncode == 0, web.server.returncode
    wait_for("the workers end", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
    web.start()


CASES = [every_worker_serves, reload_under_load, a_worker_is_killed, accept_mutex, reuseport, no_process_is_left]

if __name__ == "__main__":
    main("nginx_workers", CASES, Workers, lambda web: web.lab.close())
