#!/usr/bin/env python3
"""1 GiB each way over the wire (af_packet on a veth, kernel client), sha256 equal at both ends."""

import hashlib
import os
import random

from harness import SERVER, Lab, main, passive_opens_unmoved, wait_for

PORT = 7100
SIZE = int(os.environ.get("KNET_TEST_BULK_BYTES", 1 << 30))
SEED = 20261130

# Takes one connection: "up" hashes what comes, "down" sends SIZE bytes and tells their hash on a second connection.
CODE = """
import hashlib, random, socket, sys
size, seed = int(sys.argv[1]), int(sys.argv[2])
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((%r, %d))
s.listen(8)
block = random.Random(seed).randbytes(1 << 20)
while True:
    c, _ = s.accept()
    what = c.recv(4)
    digest = hashlib.sha256()
    if what == b"up  ":
        buffer = bytearray(1 << 18)
        while n := c.recv_into(buffer):
            digest.update(memoryview(buffer)[:n])
        c.sendall(digest.hexdigest().encode())
    elif what == b"down":
        left = size
        while left:
            part = block[:left]
            digest.update(part)
            c.sendall(part)
            left -= len(part)
        c.shutdown(socket.SHUT_WR)
        c.recv(1)
    c.close()
""" % (SERVER, PORT)


class Bulk:
    def __init__(self):
        print(f"seed={SEED} bytes={SIZE}", flush=True)
        self.lab = Lab()
        self.block = random.Random(SEED).randbytes(1 << 20)
        self.server = self.lab.start("server", "python3", "-c", CODE, str(SIZE), str(SEED), log="bulk.log")
        wait_for("the server listens", lambda: self.lab.listens(PORT), 15)

    @property
    def processes(self):
        return self.lab.processes

    def expected(self):
        digest, left = hashlib.sha256(), SIZE
        while left:
            part = self.block[:left]
            digest.update(part)
            left -= len(part)
        return digest.hexdigest()


def up(bulk):
    before, accepted = bulk.lab.kernel_tcp(), bulk.lab.stats().get("flows_accepted", 0)
    peer = bulk.lab.connect(PORT, 60.0)
    peer.sendall(b"up  ")
    left = SIZE
    while left:
        part = bulk.block[:left]
        peer.sendall(part)
        left -= len(part)
    peer.shutdown(1)
    answer = b""
    while more := peer.recv(100):
        answer += more
    assert answer.decode() == bulk.expected(), answer
    passive_opens_unmoved(bulk.lab, before, accepted, 1)


def down(bulk):
    before, accepted = bulk.lab.kernel_tcp(), bulk.lab.stats().get("flows_accepted", 0)
    peer = bulk.lab.connect(PORT, 60.0)
    peer.sendall(b"down")
    digest, count = hashlib.sha256(), 0
    while part := peer.recv(1 << 18):
        digest.update(part)
        count += len(part)
    peer.close()
    assert count == SIZE, f"{count} of {SIZE} bytes"
    assert digest.hexdigest() == bulk.expected()
    passive_opens_unmoved(bulk.lab, before, accepted, 1)


if __name__ == "__main__":
    main("bulk", [up, down], Bulk, lambda bulk: bulk.lab.close())
