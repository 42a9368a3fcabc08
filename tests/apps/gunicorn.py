#!/usr/bin/env python3
"""gunicorn with three workers under the shim: both kinds of worker, reload under load, a worker killed."""

import collections
import os
import signal
import threading
import time

from harness import SERVER, Lab, main, served, together, wait_for

PORT = 8000
APP = """
import os
TEXT = open(os.path.join(os.path.dirname(__file__), "text")).read()
def app(environ, start_response):
    body = environ["wsgi.input"].read()
    out = body or f"{TEXT} {os.getpid()}".encode()
    start_response("200 OK", [("Content-Length", str(len(out)))])
    return [out]
"""


class Gunicorn:
    def __init__(self):
        self.lab = Lab()
        with open(os.path.join(self.lab.work, "app.py"), "w", encoding="ascii") as file:
            file.write(APP)
        self.server = None
        self.start()

    @property
    def processes(self):
        return self.lab.processes

    def say(self, text):
        with open(os.path.join(self.lab.work, "text"), "w", encoding="ascii") as file:
            file.write(text)

    def start(self, *options):
        self.say("one")
        self.server = self.lab.start(
            "server", "gunicorn", "-w", "3", "-b", f"{SERVER}:{PORT}", "--chdir", self.lab.work, "--graceful-timeout", "5",
            *options, "app:app", log="gunicorn.log",
        )
        wait_for("gunicorn answers", self.answers, 20)

    def answers(self):
        try:
            return self.ask()[0] == "one"
        except OSError:
            return False

    def ask(self, body=b""):
        peer = self.lab.connect(PORT)
        peer.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = peer.makefile("rb").read()
        peer.close()
        if not answer:
            raise ConnectionResetError("closed without an answer")
        head, _, got = answer.partition(b"\r\n\r\n")
        assert b"200 OK" in head, head
        return got if body else tuple(got.decode().split())

    def workers(self):
        """The master is what the lab started: it was replaced by exec."""
        master = self.server.pid
        with open(f"/proc/{master}/task/{master}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}


def loaded(gunicorn, seconds, while_it_lasts=lambda: None):
    """Requests from four clients meanwhile: who answered, and what failed."""
    stop, seen, failed = threading.Event(), collections.Counter(), []

    def run():
        while not stop.is_set():
            try:
                seen[gunicorn.ask()] += 1
            except (OSError, AssertionError) as error:
                failed.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        while_it_lasts()
        time.sleep(seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return seen, failed


def all_workers_answer(gunicorn):
    with served(gunicorn.lab, 50):
        seen, failed = loaded(gunicorn, 1)
    assert not failed, failed[:3]
    assert len({pid for _, pid in seen}) >= 2 and sum(seen.values()) >= 50, seen


def large_bodies(gunicorn):
    with served(gunicorn.lab, 8):
        together(8, lambda n: check(gunicorn.ask(os.urandom(1) * (300_000 + n)), 300_000 + n))


def check(got, size):
    assert len(got) == size and got == got[:1] * size


def reload_under_load(gunicorn):
    old = gunicorn.workers()

    def reload():
        gunicorn.say("two")
        os.kill(gunicorn.server.pid, signal.SIGHUP)
        wait_for("the old workers end", lambda: not old & gunicorn.workers(), 20)

    with served(gunicorn.lab, 20):
        seen, failed = loaded(gunicorn, 0.5, reload)
    assert not failed, (len(failed), failed[:3])
    assert {text for text, _ in seen} == {"one", "two"}, seen


def a_worker_is_killed(gunicorn):
    victim = min(gunicorn.workers())

    def kill():
        os.kill(victim, signal.SIGKILL)
        wait_for("another worker is there", lambda: victim not in gunicorn.workers() and len(gunicorn.workers()) == 3, 20)

    with served(gunicorn.lab, 20):
        seen, failed = loaded(gunicorn, 0.5, kill)
    # What it was doing at that moment is lost, on the kernel too.
    assert len(failed) <= 2, failed
    assert sum(seen.values()) >= 20, seen


def workers_with_threads(gunicorn):
    gunicorn.lab.end(gunicorn.server)
    gunicorn.start("-k", "gthread", "--threads", "4")
    all_workers_answer(gunicorn)
    large_bodies(gunicorn)
    reload_under_load(gunicorn)


if __name__ == "__main__":
    main(
        "gunicorn", [all_workers_answer, large_bodies, reload_under_load, a_worker_is_killed, workers_with_threads], Gunicorn,
        lambda gunicorn: gunicorn.lab.close(),
    )
