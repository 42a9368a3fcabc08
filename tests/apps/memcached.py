#!/usr/bin/env python3
"""memcached with four threads under the shim; clients of both protocols, and libmemcached's tools at either end."""

import os
import struct

from harness import CLIENT, SERVER, Lab, main, reached, served, together, wait_for

PORT = 11211
KERNEL_PORT = 11311


class Ascii:
    """The text protocol (protocol.txt of memcached)."""

    def __init__(self, peer):
        self.peer = peer
        self.stream = peer.makefile("rb")

    def line(self, text):
        self.peer.sendall(text.encode() + b"\r\n")
        return self.stream.readline().rstrip().decode()

    def store(self, verb, key, value, *more):
        self.peer.sendall(f"{verb} {key} 0 0 {len(value)}{''.join(f' {word}' for word in more)}\r\n".encode() + value + b"\r\n")
        return self.stream.readline().rstrip().decode()

    def fetch(self, *keys):
        self.peer.sendall(f"gets {' '.join(keys)}\r\n".encode())
        found = {}
        while (line := self.stream.readline().split())[0] == b"VALUE":
            found[line[1].decode()] = (self.stream.read(int(line[3])), int(line[4]))
            assert self.stream.read(2) == b"\r\n"
        assert line == [b"END"], line
        return found

    def stats(self):
        self.peer.sendall(b"stats\r\n")
        found = {}
        while (line := self.stream.readline().split())[0] == b"STAT":
            found[line[1].decode()] = line[2].decode()
        return found

    def close(self):
        self.stream.close()
        self.peer.close()


class Binary:
    """The binary protocol (protocol-binary.txt of memcached)."""

    GET, SET, DELETE, INCREMENT, NOOP, GETQ, SETQ = 0x00, 0x01, 0x04, 0x05, 0x0A, 0x09, 0x11
    HEADER = struct.Struct(">BBHBBHIIQ")

    def __init__(self, peer):
        self.peer = peer
        self.stream = peer.makefile("rb")

    def request(self, code, key=b"", value=b"", extras=b"", opaque=0):
        length = len(extras) + len(key) + len(value)
        return self.HEADER.pack(0x80, code, len(key), len(extras), 0, 0, length, opaque, 0) + extras + key + value

    def answer(self):
        magic, code, keys, extras, _, status, length, opaque, _ = self.HEADER.unpack(self.stream.read(24))
        assert magic == 0x81, magic
        body = self.stream.read(length)
        return code, status, opaque, body[extras + keys:]

    def ask(self, *words, **options):
        self.peer.sendall(self.request(*words, **options))
        return self.answer()

    def close(self):
        self.stream.close()
        self.peer.close()


class Memcached:
    def __init__(self):
        self.lab = Lab()
        self.server = self.start("server", SERVER, PORT)
        wait_for("memcached answers", lambda: self.answers(SERVER, PORT), 15)

    @property
    def processes(self):
        return self.lab.processes

    def start(self, end, address, port):
        words = ["memcached", "-u", "root", "-U", "0", "-l", address, "-p", str(port), "-t", "4", "-c", "4096", "-m", "128"]
        return self.lab.start(end, *words, log=f"memcached-{end}.log")

    def answers(self, address, port):
        try:
            client = Ascii(self.lab.connect(port, 2.0, address))
            version = client.line("version")
            client.close()
            return version.startswith("VERSION ")
        except OSError:
            return False

    def ascii(self):
        return Ascii(self.lab.connect(PORT))

    def binary(self):
        return Binary(self.lab.connect(PORT))


def ascii_every_verb(cache):
    with served(cache.lab):
        client = cache.ascii()
        assert client.store("set", "a", b"1") == "STORED"
        assert client.store("add", "a", b"2") == "NOT_STORED"
        assert client.store("replace", "a", b"10") == "STORED"
        assert client.store("append", "a", b"0") == "STORED"
        assert client.line("incr a 5") == "105"
        assert client.line("decr a 5") == "100"
        value, unique = client.fetch("a")["a"]
        assert value == b"100", value
        assert client.store("cas", "a", b"new", unique) == "STORED"
        assert client.store("cas", "a", b"old", unique) == "EXISTS"
        assert client.line("touch a 100") == "TOUCHED"
        assert client.line("delete a") == "DELETED"
        assert client.fetch("a") == {}
        assert client.line("no such verb") == "ERROR"
        assert client.stats()["threads"] == "4"
        client.close()


def ascii_values_from_1_byte_to_1_mb(cache):
    with served(cache.lab):
        client = cache.ascii()
        values = {f"size{size}": os.urandom(size) for size in (1, 100, 1_459, 1_460, 4_096, 65_536, 1_000_000)}
        for key, value in values.items():
            assert client.store("set", key, value) == "STORED", key
        found = client.fetch(*values)
        assert {key: value for key, (value, _) in found.items()} == values
        client.close()


def ascii_pipelined(cache):
    client = cache.ascii()
    count = 5_000
    client.peer.sendall(b"".join(b"set p%d 0 0 4 noreply\r\n%04d\r\n" % (n % 100, n % 10_000) for n in range(count)))
    client.peer.sendall(b"".join(b"get p%d\r\n" % (n % 100) for n in range(count)))
    for n in range(count):
        assert client.stream.readline() == b"VALUE p%d 0 4\r\n" % (n % 100)
        assert client.stream.readline() == b"%04d\r\n" % (4_900 + n % 100)
        assert client.stream.readline() == b"END\r\n"
    client.close()


def binary_every_verb(cache):
    with served(cache.lab):
        client = cache.binary()
        flags = struct.pack(">II", 0, 0)
        assert client.ask(Binary.SET, b"b", b"value", flags)[1] == 0
        assert client.ask(Binary.GET, b"b", opaque=7) == (Binary.GET, 0, 7, b"value")
        counter = struct.pack(">QQI", 3, 10, 0)
        assert client.ask(Binary.INCREMENT, b"n", extras=counter)[3] == struct.pack(">Q", 10)
        assert client.ask(Binary.INCREMENT, b"n", extras=counter)[3] == struct.pack(">Q", 13)
        assert client.ask(Binary.DELETE, b"b")[1] == 0
        assert client.ask(Binary.GET, b"b")[1] == 1, "key not found"
        client.close()


def binary_quiet_requests_are_answered_by_what_follows(cache):
    client = cache.binary()
    flags = struct.pack(">II", 0, 0)
    quiet = [client.request(Binary.SETQ, b"q%d" % n, b"v%d" % n, flags) for n in range(500)]
    asked = [client.request(Binary.GETQ, b"q%d" % n, opaque=n) for n in range(0, 1_000)]
    client.peer.sendall(b"".join(quiet + asked) + client.request(Binary.NOOP, opaque=9_999))
    for n in range(500):
        assert client.answer() == (Binary.GETQ, 0, n, b"v%d" % n)
    assert client.answer()[:3] == (Binary.NOOP, 0, 9_999), "misses are silent"
    client.close()


def all_threads_serve_200_connections(cache):
    with served(cache.lab, 200):
        clients = [cache.ascii() for _ in range(200)]
        def work(number):
            for turn in range(20):
                for n in range(number, 200, 8):
                    assert clients[n].store("set", f"c{n}", b"%d-%d" % (n, turn)) == "STORED"
                for n in range(number, 200, 8):
                    assert clients[n].fetch(f"c{n}")[f"c{n}"][0] == b"%d-%d" % (n, turn)

        together(8, work)
        assert int(clients[0].stats()["curr_connections"]) >= 200
        for client in clients:
            client.close()


def connections_come_and_go(cache):
    with served(cache.lab, 500):
        for n in range(500):
            client = cache.ascii()
            assert client.store("set", "go", b"%d" % n) == "STORED"
            client.close()
    client = cache.ascii()
    wait_for("closed connections are gone", lambda: int(client.stats()["curr_connections"]) < 20)
    client.close()


def libmemcached_tools(cache):
    """memccp, memccat and memcslap on the kernel against the shim's memcached."""
    path = os.path.join(cache.lab.work, "copied")
    with open(path, "wb") as file:
        file.write(b"tools " * 1_000)
    with served(cache.lab, 3):
        cache.lab.client("memccp", f"--servers={SERVER}:{PORT}", path)
        assert "tools tools" in cache.lab.client("memccat", f"--servers={SERVER}:{PORT}", "copied")
        for protocol in ([], ["--binary"]):
            cache.lab.client("memcslap", f"--servers={SERVER}:{PORT}", "--concurrency=10", "--execute-number=200", *protocol)


def libmemcached_tools_under_the_shim(cache):
    """The same tools under the shim, memcached on the kernel."""
    path = os.path.join(cache.lab.work, "copied")
    server = cache.start("client", CLIENT, KERNEL_PORT)
    try:
        wait_for("the kernel's memcached answers", lambda: cache.answers(CLIENT, KERNEL_PORT))
        there = f"--servers={CLIENT}:{KERNEL_PORT}"
        with reached(cache.lab, 12):
            cache.lab.shimmed("memccp", there, path)
            assert "tools tools" in cache.lab.shimmed("memccat", there, "copied")
            for protocol in ([], ["--binary"]):
                cache.lab.shimmed("memcslap", there, "--concurrency=10", "--execute-number=200", *protocol)
    finally:
        cache.lab.end(server)


CASES = [
    ascii_every_verb, ascii_values_from_1_byte_to_1_mb, ascii_pipelined, binary_every_verb,
    binary_quiet_requests_are_answered_by_what_follows, all_threads_serve_200_connections, connections_come_and_go,
    libmemcached_tools, libmemcached_tools_under_the_shim,
]

if __name__ == "__main__":
    main("memcached", CASES, Memcached, lambda cache: cache.lab.close())
