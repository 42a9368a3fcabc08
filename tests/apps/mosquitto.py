#!/usr/bin/env python3
"""The mosquitto broker under the shim with its clients on the kernel, and its clients under the shim."""

import os
import subprocess

from harness import CLIENT, SERVER, Lab, main, reached, served, wait_for

PORT = 1883


class Mosquitto:
    def __init__(self):
        self.lab = Lab()
        for end, address in (("server", SERVER), ("client", CLIENT)):
            path = os.path.join(self.lab.work, f"{end}.conf")
            with open(path, "w", encoding="ascii") as file:
                file.write(f"user root\nallow_anonymous true\npersistence false\nlistener {PORT} {address}\n")
            self.lab.start(end, "mosquitto", "-c", path, log=f"mosquitto-{end}.log")
            wait_for(f"mosquitto at {address} listens", lambda: self.lab.listens(PORT, address), 15)

    @property
    def processes(self):
        return self.lab.processes

    def exchange(self, end, run, address, quality):
        """Five subscribers, 20 messages, one of them large; then one that was kept for who comes late."""
        there = ["-h", address, "-p", str(PORT), "-q", str(quality)]
        topic = f"knet/{end}/{quality}"
        subscribers = [
            subprocess.Popen(
                self.lab.command(end, "stdbuf", "-oL", "mosquitto_sub", *there, "-t", f"{topic}/#", "-C", "20", "-W", "30", "-d"),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for _ in range(5)
        ]
        for subscriber in subscribers:
            while "Subscribed" not in (line := subscriber.stdout.readline()):
                assert line, "a subscriber ended"
        large = os.path.join(self.lab.work, "large")
        with open(large, "w", encoding="ascii") as file:
            file.write("large" * 200_000)
        for n in range(19):
            run("mosquitto_pub", *there, "-t", f"{topic}/{n}", "-m", f"message {n}")
        run("mosquitto_pub", *there, "-t", f"{topic}/large", "-f", large)
        for subscriber in subscribers:
            lines = [line for line in subscriber.communicate(timeout=30)[0].splitlines() if line.startswith(("message", "large"))]
            assert lines == [f"message {n}" for n in range(19)] + ["large" * 200_000], [line[:20] for line in lines]
        run("mosquitto_pub", *there, "-t", f"{topic}/kept", "-m", "kept", "-r")
        assert run("mosquitto_sub", *there, "-t", f"{topic}/kept", "-C", "1", "-W", "10").strip() == "kept"


def broker(mosquitto):
    for quality in (0, 1, 2):
        with served(mosquitto.lab, 27):
            mosquitto.exchange("client", mosquitto.lab.client, SERVER, quality)


def clients(mosquitto):
    for quality in (0, 2):
        with reached(mosquitto.lab, 27):
            mosquitto.exchange("server", mosquitto.lab.shimmed, CLIENT, quality)


def a_client_that_dies_leaves_its_will(mosquitto):
    there = ["-h", SERVER, "-p", str(PORT)]
    with served(mosquitto.lab, 2):
        watcher = subprocess.Popen(
            mosquitto.lab.command("client", "stdbuf", "-oL", "mosquitto_sub", *there, "-t", "will", "-C", "1", "-W", "20", "-d"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        while "Subscribed" not in watcher.stdout.readline():
            pass
        dying = subprocess.Popen(
            mosquitto.lab.command("client", "stdbuf", "-oL", "mosquitto_sub", *there, "-t", "x", "--will-topic", "will", "--will-payload", "gone", "-d"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        while "Subscribed" not in dying.stdout.readline():
            pass
        dying.kill()
        dying.wait()
        assert "gone" in watcher.communicate(timeout=20)[0].splitlines()


if __name__ == "__main__":
    main("mosquitto", [broker, clients, a_client_that_dies_leaves_its_will], Mosquitto, lambda mosquitto: mosquitto.lab.close())
