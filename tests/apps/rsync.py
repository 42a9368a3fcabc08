#!/usr/bin/env python3
"""The rsync daemon under the shim with its client on the kernel, and the client under the shim."""

import filecmp
import os

from harness import CLIENT, SERVER, Lab, main, reached, served, wait_for
from origin import content

PORT = 8730


class Rsync:
    def __init__(self):
        self.lab = Lab()
        self.tree = self.path("tree")
        for n in range(10):
            os.makedirs(os.path.join(self.tree, f"folder{n}"))
            for m in range(20):
                with open(os.path.join(self.tree, f"folder{n}", f"file{m}"), "wb") as file:
                    file.write(content(n * 5_000 + m))
        with open(os.path.join(self.tree, "large"), "wb") as file:
            file.write(content(20_000_000))
        for end, address in (("server", SERVER), ("client", CLIENT)):
            os.mkdir(self.path(f"into-{end}"))
            with open(self.path(f"{end}.conf"), "w", encoding="ascii") as file:
                file.write(
                    f"uid = root\ngid = root\nuse chroot = no\npid file = {self.path(end)}.pid\n"
                    f"[tree]\npath = {self.tree}\n[into]\npath = {self.path(f'into-{end}')}\nread only = no\n"
                )
            self.lab.start(
                end, "rsync", "--daemon", "--no-detach", f"--address={address}", f"--port={PORT}", f"--config={self.path(end)}.conf",
                log=f"rsync-{end}.log",
            )
            wait_for(f"rsync at {address} answers", lambda: self.answers(address), 15)

    @property
    def processes(self):
        return self.lab.processes

    def path(self, name):
        return os.path.join(self.lab.work, name)

    def answers(self, address):
        try:
            peer = self.lab.connect(PORT, 2.0, address)
            greeting = peer.recv(100)
            peer.close()
            return greeting.startswith(b"@RSYNCD:")
        except OSError:
            return False

    def both_ways(self, run, address, name):
        there = f"rsync://{address}:{PORT}"
        assert run("rsync", f"{there}/").split() == ["tree", "into"]
        down, up = self.path(f"down-{name}"), self.path(f"into-{name}")
        run("rsync", "-a", f"{there}/tree/", down)
        same(self.tree, down)
        run("rsync", "-a", f"{self.tree}/", f"{there}/into/")
        same(self.tree, up)
        # A change in the middle of the large file: only that part is sent, after checksums went the other way.
        with open(os.path.join(down, "large"), "r+b") as file:
            file.seek(10_000_000)
            file.write(b"changed")
        out = run("rsync", "-a", "--no-whole-file", "--ignore-times", "--stats", f"{down}/", f"{there}/into/")
        sent = int(out.split("Total bytes sent: ")[1].split("\n")[0].replace(",", ""))
        assert sent < 2_000_000, out
        same(down, up)
        out = run("rsync", "-az", "--delete", f"{there}/tree/", down, f"--compare-dest={self.tree}", "--stats")
        assert "Number of deleted files" in out


def same(one, other):
    names = [os.path.relpath(os.path.join(folder, name), one) for folder, _, files in os.walk(one) for name in files]
    assert len(names) == 201, len(names)
    equal, unequal, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    assert len(equal) == 201, (unequal[:3], missing[:3])


def daemon(rsync):
    with served(rsync.lab, 5):
        rsync.both_ways(rsync.lab.client, SERVER, "server")


def client(rsync):
    with reached(rsync.lab, 5):
        rsync.both_ways(rsync.lab.shimmed, CLIENT, "client")


def a_transfer_that_is_broken_off(rsync):
    """The client goes away in the middle: the daemon's child ends, the daemon goes on."""
    with served(rsync.lab, 6):
        for n in range(5):
            rsync.lab.client(
                "timeout", "-s", "KILL", "0.5", "rsync", "-a", "--bwlimit=1000", f"rsync://{SERVER}:{PORT}/tree/large",
                rsync.path(f"part{n}"), check=False,
            )
        wait_for("the daemon answers", lambda: rsync.answers(SERVER))


if __name__ == "__main__":
    main("rsync", [daemon, client, a_transfer_that_is_broken_off], Rsync, lambda rsync: rsync.lab.close())
