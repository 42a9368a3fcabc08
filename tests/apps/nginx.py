#!/usr/bin/env python3
"""nginx as one process under the shim: files by sendfile, a proxy, websockets, TLS and HTTP/2; clients on the kernel."""

import base64
import hashlib
import http.client
import os
import socket
import ssl
import time

from harness import CLIENT, SERVER, Lab, certificate, main, reached, served, together, wait_for
from origin import Origin, content, frame, read_frame

PLAIN, SECURE, ORIGIN, NOBODY = 8080, 8443, 9000, 9999
SIZES = (0, 1, 1_459, 1_460, 1_461, 65_536, 1 << 20, 30 << 20)

CONFIG = """
daemon off; master_process off; pid {work}/nginx.pid; error_log {work}/nginx.log; user root;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; client_max_body_size 100m;
  client_body_temp_path {work}/body; proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi; uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  upstream origin {{ server {client}:9000; keepalive 8; }}
  server {{
    listen {server}:8080; root {work}/root;
    location /origin/ {{ proxy_pass http://origin/; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    location /stream/ {{
      proxy_pass http://origin/; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
    location /websocket {{
      proxy_pass http://origin; proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";
    }}
    location /nobody/ {{ proxy_pass http://{client}:9999/; }}
    location /short/ {{ alias {work}/root/; keepalive_timeout 1s; }}
  }}
  server {{
    listen {server}:8443 ssl http2; root {work}/root;
    ssl_certificate {cert}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
    location /origin/ {{ proxy_pass http://origin/; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


class Nginx:
    def __init__(self):
        self.lab = Lab()
        self.origin = None
        work = self.lab.work
        os.chmod(work, 0o755)
        os.mkdir(os.path.join(work, "root"))
        for size in SIZES:
            with open(os.path.join(work, "root", str(size)), "wb") as file:
                file.write(content(size))
        self.cert, key = certificate(work)
        config = os.path.join(work, "nginx.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(work=work, server=SERVER, client=CLIENT, cert=self.cert, key=key))
        self.lab.start("server", "nginx", "-c", config, log="nginx.out")
        wait_for("nginx answers", self.answers, 15)
        self.origin = Origin(self.lab, ORIGIN)

    @property
    def processes(self):
        return self.lab.processes

    def answers(self):
        try:
            return self.get("/1") == (200, content(1))
        except OSError:
            return False

    def open(self, port=PLAIN):
        """A connection for http.client, made in the client's namespace."""
        client = http.client.HTTPConnection(SERVER, port)
        client.sock = self.lab.connect(port, 30.0)
        client.auto_open = False
        return client

    def get(self, path, client=None, **options):
        mine = client or self.open()
        mine.request(options.pop("method", "GET"), path, **options)
        answer = mine.getresponse()
        body = answer.read()
        if not client:
            mine.close()
        return answer.status, body

    def secure(self, protocols=("http/1.1",), session=None):
        context = ssl.create_default_context(cafile=self.cert)
        context.set_alpn_protocols(list(protocols))
        return context, context.wrap_socket(self.lab.connect(SECURE, 30.0), server_hostname=SERVER, session=session)

    def close(self):
        if self.origin:
            self.origin.close()
        self.lab.close()


def files_of_every_size_over_one_connection(web):
    with served(web.lab):
        client = web.open()
        for size in SIZES:
            assert web.get(f"/{size}", client) == (200, content(size)), size
        assert web.get("/none", client)[0] == 404
        client.close()


def a_connection_each(web):
    with served(web.lab, 300):
        for n in range(300):
            assert web.get("/1461") == (200, content(1_461)), n


def heads_and_ranges(web):
    whole = content(1 << 20)
    with served(web.lab):
        client = web.open()
        assert web.get("/1048576", client, method="HEAD") == (200, b"")
        for first, last in ((0, 0), (1_459, 1_461), (65_536, 1_000_000), (1_048_575, 1_048_575)):
            got = web.get("/1048576", client, headers={"Range": f"bytes={first}-{last}"})
            assert got == (206, whole[first : last + 1]), (first, last)
        client.close()


def requests_in_one_write_are_answered_in_order(web):
    with served(web.lab):
        peer = web.lab.connect(PLAIN)
        names = [1, 1_459, 1_460, 1_461, 65_536] * 40
        peer.sendall(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % name for name in names))
        stream = peer.makefile("rb")
        for name in names:
            assert b"200 OK" in stream.readline()
            while stream.readline() != b"\r\n":
                pass
            assert stream.read(name) == content(name)
        peer.close()


def slow_readers_get_every_byte(web):
    """Small windows: sendfile fills the socket and goes on when there is room."""
    expected = hashlib.sha256(content(30 << 20)).digest()

    def read(n):
        with web.lab.inside():
            peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        peer.settimeout(60)
        peer.connect((SERVER, PLAIN))
        peer.sendall(b"GET /%d HTTP/1.0\r\n\r\n" % (30 << 20))
        time.sleep(0.1 * n)
        stream, digest = peer.makefile("rb"), hashlib.sha256()
        while stream.readline() != b"\r\n":
            pass
        while part := stream.read(1 << 16):
            digest.update(part)
        assert digest.digest() == expected
        peer.close()

    with served(web.lab, 4):
        together(4, read)


def an_idle_connection_is_closed(web):
    with served(web.lab):
        client = web.open()
        assert web.get("/short/1", client) == (200, content(1))
        begin = time.monotonic()
        assert client.sock.recv(1) == b"", "the server closes"
        assert 0.8 < time.monotonic() - begin < 5
        client.close()


def a_proxied_origin(web):
    with served(web.lab), reached(web.lab):
        client = web.open()
        for where in ("origin", "stream"):
            for size in (0, 1, 65_536, 5_000_000):
                assert web.get(f"/{where}/size/{size}", client) == (200, content(size)), (where, size)
            for size in (1, 10_000, 20_000_000):
                body = content(size)
                got = web.get(f"/{where}/", client, method="POST", body=body)
                assert got == (200, hashlib.sha256(body).hexdigest().encode()), (where, size)
        client.close()


def many_clients_of_a_proxied_origin(web):
    def ask(n):
        client = web.open()
        for turn in range(25):
            assert web.get(f"/origin/{n}/{turn}", client) == (200, f"origin /{n}/{turn}".encode())
        client.close()

    with served(web.lab, 20), reached(web.lab, 0):  # perhaps over a connection that was kept
        together(20, ask)


def an_origin_that_refuses_or_hangs_up(web):
    with served(web.lab, 2):
        assert web.get("/nobody/")[0] == 502
        assert web.get("/origin/closed")[0] == 502
        assert web.get("/origin/after") == (200, b"origin /after")


def websockets(web):
    with served(web.lab), reached(web.lab, 0):  # perhaps over a connection that was kept
        peer = web.lab.connect(PLAIN)
        key = base64.b64encode(os.urandom(16)).decode()
        peer.sendall(
            f"GET /websocket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        stream = peer.makefile("rb")
        assert b"101" in stream.readline()
        while stream.readline() != b"\r\n":
            pass
        for size in (1, 125, 126, 65_535, 65_536, 1_000_000):
            payload = content(size)
            peer.sendall(frame(2, payload, mask=b"knet"))
            assert read_frame(stream) == (2, payload), size
        peer.sendall(frame(8, b"\x03\xe8", mask=b"knet"))
        assert read_frame(stream) == (8, b"\x03\xe8")
        assert stream.read(1) == b""
        peer.close()


def tls(web):
    with served(web.lab, 12):
        _, peer = web.secure()
        assert peer.version() == "TLSv1.3"
        client = http.client.HTTPConnection(SERVER, SECURE)
        client.sock = peer
        for size in SIZES:
            assert web.get(f"/{size}", client) == (200, content(size)), size
        client.close()
        for n in range(10):
            _, peer = web.secure()
            peer.sendall(b"GET /origin/%d HTTP/1.0\r\n\r\n" % n)
            assert peer.makefile("rb").read().endswith(b"origin /%d" % n)
            peer.close()
        # A client that speaks no TLS gets an answer too.
        peer = web.lab.connect(SECURE)
        peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"400" in peer.makefile("rb").readline()
        peer.close()


def http_2(web):
    """curl: 40 transfers, several streams on one connection, and over HTTP/1.1 beside them."""
    out = os.path.join(web.lab.work, "h2")
    os.makedirs(out, exist_ok=True)
    with served(web.lab, 2):
        for version in ("--http2", "--http1.1"):
            sizes = [1, 1_460, 65_536, 1 << 20] * 10
            words = ["curl", "--fail", version, "--cacert", web.cert, "--no-progress-meter", "-Z", "--parallel-max", "10", "-w", "%{http_version}\n"]
            for n, size in enumerate(sizes):
                words += ["-o", f"{out}/{n}", f"https://{SERVER}:{SECURE}/{size}"]
            versions = web.lab.client(*words).split()
            assert versions == ["2" if version == "--http2" else "1.1"] * len(sizes), versions
            for n, size in enumerate(sizes):
                with open(f"{out}/{n}", "rb") as file:
                    assert file.read() == content(size), (version, n, size)
        upload = os.path.join(web.lab.work, "root", str(30 << 20))
        answer = web.lab.client(
            "curl", "-sS", "--fail", "--http2", "--cacert", web.cert, "--data-binary", f"@{upload}", f"https://{SERVER}:{SECURE}/origin/"
        )
        assert answer == hashlib.sha256(content(30 << 20)).hexdigest(), answer


CASES = [
    files_of_every_size_over_one_connection, a_connection_each, heads_and_ranges, requests_in_one_write_are_answered_in_order,
    slow_readers_get_every_byte, an_idle_connection_is_closed, a_proxied_origin, many_clients_of_a_proxied_origin,
    an_origin_that_refuses_or_hangs_up, websockets, tls, http_2,
]

if __name__ == "__main__":
    main("nginx", CASES, Nginx, Nginx.close)
