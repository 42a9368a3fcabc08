"""A web server on the kernel's side of a lab, in the test's own process: what proxies, balancers and caches ask."""

import base64
import contextlib
import hashlib
import random
import socket
import socketserver
import ssl
import threading
from http.server import BaseHTTPRequestHandler

from harness import CLIENT

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


def content(size):
    """The bytes of /size/N."""
    return random.Random(size).randbytes(size)


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, status=200, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Origin", self.server.name)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path.startswith("/size/"):
            self.reply(content(int(self.path.removeprefix("/size/"))), Cache_Control="max-age=60")
        elif self.path == "/websocket":
            self.websocket()
        elif self.path == "/healthy":
            self.reply(b"", 200 if self.server.healthy else 503)
        elif self.path == "/closed":
            self.close_connection = True  # without an answer
        else:
            self.reply(f"{self.server.name} {self.path}".encode())

    do_HEAD = do_GET

    def do_POST(self):
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            part = self.rfile.read(min(left, 1 << 16))
            if not part:
                return
            digest.update(part)
            left -= len(part)
        self.reply(digest.hexdigest().encode())

    def websocket(self):
        """Opens, then gives each frame back unmasked until a close frame comes."""
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        while True:
            code, payload = read_frame(self.rfile)
            self.wfile.write(frame(code, payload))
            if code == 8:
                break
        self.close_connection = True


def frame(code, payload, mask=None):
    """A websocket frame (RFC 6455, section 5.2)."""
    size, bit = len(payload), 0x80 if mask else 0
    head = bytes([0x80 | code])
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += bytes([bit | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + size.to_bytes(8, "big")
    return head + (mask + masked(payload, mask) if mask else payload)


def masked(payload, mask):
    whole = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(payload), "big")


def read_frame(stream):
    first, second = stream.read(2)
    size = second & 0x7F
    if size == 126:
        size = int.from_bytes(stream.read(2), "big")
    elif size == 127:
        size = int.from_bytes(stream.read(8), "big")
    mask = stream.read(4) if second & 0x80 else None
    payload = stream.read(size)
    return first & 0x0F, masked(payload, mask) if mask else payload


class Origin(socketserver.ThreadingTCPServer):
    """Serves until closed."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1_024

    def __init__(self, lab, port, name="origin", context=None):
        with lab.inside("c"):
            super().__init__((CLIENT, port), Answer)
        self.name, self.healthy, self.asked, self.open = name, True, [], set()
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request):
        self.open.discard(request)
        super().close_request(request)

    def handle_error(self, request, client_address):
        pass  # a peer that went away

    def close(self):
        self.shutdown()
        self.server_close()
        self.thread.join()
        for request in list(self.open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


def origins(lab, plain, secure, cert, key):
    """An origin without TLS, and one with it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return [Origin(lab, plain), Origin(lab, secure, context=context)]
