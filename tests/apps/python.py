#!/usr/bin/env python3
"""Python's own servers and clients under the shim: threads, asyncio, http.server, requests; peers on the kernel."""

import hashlib
import os
import ssl

from harness import CLIENT, SERVER, Lab, certificate, main, reached, served, together, wait_for
from origin import content, origins

ORIGIN, SECURE_ORIGIN = 9000, 9443
PYTHON = "/usr/bin/python3"  # the system's, with its packages

THREADS = f"""
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.request_queue_size = 128
with socketserver.ThreadingTCPServer(("{SERVER}", 7001), Echo) as server:
    server.serve_forever()
"""

FORKS = THREADS.replace("Threading", "Forking").replace("7001", "7002")

ASYNCIO = f"""
import asyncio, ssl, sys
async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()
async def serve():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*sys.argv[1:])
    servers = [await asyncio.start_server(echo, "{SERVER}", 7003, backlog=256, limit=1 << 20),
               await asyncio.start_server(echo, "{SERVER}", 7004, ssl=context, limit=1 << 20)]
    await asyncio.gather(*(server.serve_forever() for server in servers))
asyncio.run(serve())
"""

ASYNCIO_CLIENT = f"""
import asyncio
async def get(n):
    reader, writer = await asyncio.open_connection("{CLIENT}", {ORIGIN})
    writer.write(b"GET /%d HTTP/1.0\\r\\n\\r\\n" % n)
    body = (await reader.read()).split(b"\\r\\n\\r\\n")[1]
    assert body == b"origin /%d" % n, body
    writer.close()
    await writer.wait_closed()
async def all():
    for _ in range(4):
        await asyncio.gather(*(get(n) for n in range(50)))
    try:
        await asyncio.open_connection("{CLIENT}", 9999)
    except ConnectionRefusedError:
        print("refused")
    try:
        await asyncio.wait_for(asyncio.open_connection("10.77.0.77", 80), 0.2)
    except TimeoutError:
        print("timed out")
asyncio.run(all())
"""

REQUESTS = f"""
import hashlib, requests, sys
session = requests.Session()
for size in (0, 1, 1460, 1000000):
    for url in ("http://{CLIENT}:{ORIGIN}", "https://{CLIENT}:{SECURE_ORIGIN}"):
        got = session.get(f"{{url}}/size/{{size}}", verify=sys.argv[1])
        posted = session.post(url, data=got.content, verify=sys.argv[1])
        assert posted.text == hashlib.sha256(got.content).hexdigest()
        print(size, posted.text)
try:
    requests.get("http://{CLIENT}:9999/")
except requests.exceptions.ConnectionError:
    print("refused")
try:
    requests.get("http://10.77.0.77/", timeout=0.2)
except requests.exceptions.Timeout:
    print("timed out")
"""

URLLIB = f"""
import hashlib, threading, urllib.request
def get(n):
    for turn in range(5):
        with urllib.request.urlopen(f"http://{CLIENT}:{ORIGIN}/size/{{n * 1000}}") as answer:
            assert len(answer.read()) == n * 1000
threads = [threading.Thread(target=get, args=(n,)) for n in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


class Python:
    def __init__(self):
        self.lab = Lab()
        self.cert, self.key = certificate(self.lab.work)
        self.origins = origins(self.lab, ORIGIN, SECURE_ORIGIN, self.cert, self.key)

    @property
    def processes(self):
        return self.lab.processes

    def start(self, port, *words, name):
        server = self.lab.start("server", PYTHON, *words, log=f"{name}.log")

        def listens():
            assert server.poll() is None, "the server ended"
            return self.lab.listens(port)

        wait_for(f"{name} listens", listens, 15)
        return server

    def echoes(self, port, clients, wrap=lambda peer: peer):
        """Clients at the same time, each with lines of many lengths."""

        def talk(n):
            peer = wrap(self.lab.connect(port, 30.0))
            stream = peer.makefile("rb")
            for size in (1, 100, 1_460, 5_000, 100_000):
                line = content(size).replace(b"\n", b".") + b"\n"
                peer.sendall(line)
                assert stream.readline() == line, (n, size)
            stream.close()
            peer.close()

        with served(self.lab, clients):
            together(clients, talk)

    def close(self):
        for origin in self.origins:
            origin.close()
        self.lab.close()


def socketserver_with_threads(python):
    server = python.start(7001, "-c", THREADS, name="threads")
    python.echoes(7001, 40)
    python.lab.end(server)


def socketserver_with_forks(python):
    server = python.start(7002, "-c", FORKS, name="forks")
    python.echoes(7002, 20)
    python.lab.end(server)


def asyncio_servers(python):
    server = python.start(7003, "-c", ASYNCIO, python.cert, python.key, name="asyncio")
    python.echoes(7003, 60)
    context = ssl.create_default_context(cafile=python.cert)
    python.echoes(7004, 20, lambda peer: context.wrap_socket(peer, server_hostname=SERVER))
    python.lab.end(server)


def http_server(python):
    folder = os.path.join(python.lab.work, "site")
    os.mkdir(folder)
    for size in (0, 1, 100_000, 3_000_000):
        with open(os.path.join(folder, str(size)), "wb") as file:
            file.write(content(size))
    server = python.start(7005, "-m", "http.server", "--bind", SERVER, "--directory", folder, "7005", name="http.server")

    def get(n):
        size = (0, 1, 100_000, 3_000_000)[n % 4]
        peer = python.lab.connect(7005, 30.0)
        peer.sendall(b"GET /%d HTTP/1.0\r\n\r\n" % size)
        head, _, body = peer.makefile("rb").read().partition(b"\r\n\r\n")
        assert b"200 OK" in head and body == content(size), size
        peer.close()

    with served(python.lab, 20):
        together(20, get)
    python.lab.end(server)


def asyncio_clients(python):
    with reached(python.lab, 200):
        assert python.lab.shimmed(PYTHON, "-c", ASYNCIO_CLIENT).split("\n") == ["refused", "timed out", ""]


def requests_clients(python):
    with reached(python.lab, 2):
        lines = python.lab.shimmed(PYTHON, "-c", REQUESTS, python.cert).splitlines()
    expected = [f"{size} {hashlib.sha256(content(size)).hexdigest()}" for size in (0, 1, 1_460, 1_000_000) for _ in range(2)]
    assert lines == [*expected, "refused", "timed out"], lines


def urllib_clients_in_threads(python):
    with reached(python.lab, 100):
        assert python.lab.shimmed(PYTHON, "-c", URLLIB) == ""


CASES = [
    socketserver_with_threads, socketserver_with_forks, asyncio_servers, http_server, asyncio_clients, requests_clients,
    urllib_clients_in_threads,
]

if __name__ == "__main__":
    main("python", CASES, Python, Python.close)
