"""A TCP peer made by hand: its segments leave as, when and as often as a test says, from an address that no kernel has."""

import socket
import struct
import time

from harness import SERVER

ADDRESS = "10.77.0.77"
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Peer:
    """A connection to the server of a lab on a veth. Offsets are those of its own stream."""

    def __init__(self, lab, port, local_port):
        with lab.inside("c"):
            self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.wire.bind(("veth0", 0))
        self.mac = self.wire.getsockname()[4]
        self.server = b"\xff" * 6
        self.local, self.remote = local_port, port
        # Of the server's stream: the bytes by their offset, and how often each segment came.
        self.heard, self.came = {}, {}
        self.is_reset = False
        self.acknowledges, self.sent = True, 0
        self.base = local_port * 65_537 & 0xFFFFFFFF
        self.their_base = None
        self.arp(1, b"\0" * 6)
        self.until(lambda: self.server != b"\xff" * 6, "the server's MAC")
        self.raw(self.base - 1, 0, SYN)
        self.until(lambda: self.their_base is not None, "a SYN-ACK")
        self.segment(0, b"")

    def arp(self, operation, target):
        packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        packet += self.mac + socket.inet_aton(ADDRESS) + target + socket.inet_aton(SERVER)
        self.wire.send(self.server + self.mac + b"\x08\x06" + packet)

    def raw(self, seq, ack, flags, data=b""):
        ends = socket.inet_aton(ADDRESS) + socket.inet_aton(SERVER)
        tcp = struct.pack("!HHIIBB", self.local, self.remote, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 5 << 4, flags)
        tcp += struct.pack("!HHH", 0xFFFF, 0, 0) + data
        value = checksum(ends + struct.pack("!HH", 6, len(tcp)) + tcp)
        tcp = tcp[:16] + struct.pack("!H", value) + tcp[18:]
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + ends
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        self.wire.send(self.server + self.mac + b"\x08\x00" + head + tcp)

    def segment(self, offset, data):
        """Sends bytes of the stream; acknowledges what has been heard without a gap."""
        ack = self.their_base + (len(self.stream()) if self.acknowledges else 0)
        self.raw(self.base + offset, ack, ACK | PSH, data)
        self.sent = max(self.sent, offset + len(data))

    def stream(self):
        """What the server has sent, as far as there is no gap."""
        stream = b""
        while (part := self.heard.get(len(stream))):
            stream += part
        return stream

    def hear(self, seconds, is_so=lambda: False):
        """Takes what comes in so many seconds, or until something is so or the connection is reset."""
        end = time.monotonic() + seconds
        while not self.is_reset and not is_so() and (left := end - time.monotonic()) > 0:
            self.wire.settimeout(left)
            try:
                frame = self.wire.recv(1 << 16)
            except TimeoutError:
                return
            self.take(frame)

    def take(self, frame):
        kind = frame[12:14]
        if kind == b"\x08\x06" and frame[28:32] == socket.inet_aton(SERVER) and frame[38:42] == socket.inet_aton(ADDRESS):
            self.server = frame[22:28]
            if frame[20:22] == b"\0\1":
                self.arp(2, self.server)
        if kind != b"\x08\x00" or frame[23] != 6 or frame[30:34] != socket.inet_aton(ADDRESS):
            return
        packet = frame[14:14 + struct.unpack("!H", frame[16:18])[0]]
        tcp = packet[(packet[0] & 15) * 4:]
        source, target, seq, _, words, flags = struct.unpack("!HHIIBB", tcp[:14])
        if (source, target) != (self.remote, self.local):
            return
        self.is_reset = self.is_reset or bool(flags & RST)
        if flags & SYN:
            self.their_base = seq + 1 & 0xFFFFFFFF
        elif data := tcp[(words >> 4) * 4:]:
            at = seq - self.their_base & 0xFFFFFFFF
            self.heard[at] = max(data, self.heard.get(at, b""), key=len)
            self.came[at] = self.came.get(at, 0) + 1
            if self.acknowledges:
                self.segment(self.sent, b"")

    def until(self, is_so, what, seconds=10):
        self.hear(seconds, is_so)
        assert is_so(), f"no {what}; reset={self.is_reset}"

    def close(self):
        self.wire.close()
