#!/usr/bin/env python3
"""Frames that nobody should send, at a Redis whose client goes on. Needs root."""

import contextlib
import os
import socket
import struct
import threading
import time

from faults_parts import connects, echoes, main_of
from harness import CLIENT, SERVER, wait_for


def total(data):
    if len(data) % 2:
        data += b"\0"
    value = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while value >> 16:
        value = (value >> 16) + (value & 0xFFFF)
    return ~value & 0xFFFF


def tcp_segment(source, target, sport, dport, *, seq=1, ack=0, flags=2, options=b"", payload=b"", checksum=None, offset=None):
    """A TCP segment; `source` and `target` are dotted addresses."""
    length = 20 + len(options)
    offset = length // 4 if offset is None else offset
    head = struct.pack("!HHIIBBHHH", sport, dport, seq, ack, offset << 4, flags, 1000, 0, 0) + options
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, len(head) + len(payload))
    value = total(pseudo + head + payload) if checksum is None else checksum
    return head[:16] + struct.pack("!H", value) + head[18:] + payload


def ip_packet(source, target, body, *, protocol=6, length=None, checksum=None, version=4, words=5, fragment=0, options=b""):
    words = words if not options else 5 + len(options) // 4
    length = 20 + len(options) + len(body) if length is None else length
    head = struct.pack("!BBHHHBBH", version << 4 | words, 0, length, 7, fragment, 64, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(target) + options
    value = total(head) if checksum is None else checksum
    return head[:10] + struct.pack("!H", value) + head[12:] + body


class Wire:
    """A raw socket on the peer's end of the veth."""

    def __init__(self, faults):
        with faults.lab.inside("c"):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self.socket.bind(("veth0", 0))
        self.mac = self.socket.getsockname()[4]
        echoes_once = faults.ip("c", "neigh", "show", SERVER)
        self.target = bytes.fromhex(echoes_once.split("lladdr ")[1].split()[0].replace(":", ""))

    def send(self, packet, kind=0x0800, target=None, source=None):
        while True:
            try:
                return self.socket.send((target or self.target) + (source or self.mac) + struct.pack("!H", kind) + packet)
            except OSError as error:
                # The queue of the veth is full.
                if error.errno != 105:
                    raise
                time.sleep(0.001)

    def arp(self, operation, mac, address, target_mac, target_address, to=None):
        packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        packet += mac + socket.inet_aton(address) + target_mac + socket.inet_aton(target_address)
        self.send(packet, 0x0806, to or b"\xff" * 6, mac)

    def close(self):
        self.socket.close()


class Redis:
    """A Redis whose client checks every answer while something else goes on."""

    def __init__(self, faults):
        faults.port += 10
        self.faults, self.port = faults, faults.port
        self.server = faults.lab.start(
            "server", "redis-server", "--port", str(self.port), "--bind", SERVER, "--protected-mode", "no", "--save", "",
            log="redis.log",
        )
        self.stop = threading.Event()
        self.faults_seen = []
        self.done = 0
        self.peer = connects(faults, self.port)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def ask(self, peer, *words):
        peer.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        reader = peer.makefile("rb")
        line = reader.readline()
        if line[:1] == b"$":
            return reader.read(int(line[1:]) + 2)[:-2]
        return line[1:-2]

    def work(self):
        try:
            while not self.stop.is_set():
                value = b"%d" % self.done * 50
                assert self.ask(self.peer, b"SET", b"k", value) == b"OK"
                assert self.ask(self.peer, b"GET", b"k") == value
                self.done += 1
        except (OSError, AssertionError, ValueError) as error:
            self.faults_seen.append(repr(error))

    def end(self):
        """Nothing was lost, and new clients are served."""
        done = self.done
        wait_for("the client goes on", lambda: self.done > done + 20 or self.faults_seen)
        self.stop.set()
        self.thread.join()
        assert not self.faults_seen, self.faults_seen
        peer = self.faults.lab.connect(self.port)
        assert self.ask(peer, b"PING") == b"PONG"
        peer.close()
        self.peer.close()
        self.faults.lab.end(self.server)


@contextlib.contextmanager
def under_redis(faults):
    redis = Redis(faults)
    wire = Wire(faults)
    try:
        yield redis, wire
        redis.end()
    finally:
        redis.stop.set()
        redis.thread.join()
        wire.close()


def counted(faults, names, before, at_least):
    def enough():
        now = faults.lab.stats()
        return all(now.get(name, 0) - before.get(name, 0) >= at_least for name in names)

    try:
        wait_for("counted", enough, 5)
    except AssertionError:
        now = faults.lab.stats()
        raise AssertionError({name: now.get(name, 0) - before.get(name, 0) for name in names}) from None


def garbage_frames_are_counted_and_dropped(faults):
    with under_redis(faults) as (redis, wire):
        before = faults.lab.stats()
        port = redis.port
        syn = tcp_segment(CLIENT, SERVER, 5000, port)
        bad = {
            "rx_dropped_ipv4_truncated": [b"\x45\0\0", b""],
            "rx_dropped_ipv4_version": [ip_packet(CLIENT, SERVER, syn, version=6)],
            "rx_dropped_ipv4_header_length": [ip_packet(CLIENT, SERVER, syn, words=4)],
            "rx_dropped_ipv4_total_length": [
                ip_packet(CLIENT, SERVER, syn, length=19), ip_packet(CLIENT, SERVER, syn, length=1400),
            ],
            "rx_dropped_ipv4_checksum": [ip_packet(CLIENT, SERVER, syn, checksum=0x1234)],
            "rx_dropped_ipv4_options": [ip_packet(CLIENT, SERVER, syn, options=b"\x07\x00\x00\x00")],
            "rx_dropped_ipv4_source_route": [ip_packet(CLIENT, SERVER, syn, options=b"\x83\x07\x04\x0a\x4d\x00\x02\x00")],
            "rx_dropped_ipv4_source": [
                ip_packet(source, SERVER, tcp_segment(source, SERVER, 5000, port))
                for source in ("127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0")
            ],
            "rx_dropped_ipv4_other_address": [ip_packet(CLIENT, "10.77.0.9", tcp_segment(CLIENT, "10.77.0.9", 5000, port))],
            "rx_dropped_protocol": [ip_packet(CLIENT, SERVER, b"x" * 40, protocol=200)],
            "rx_dropped_tcp_truncated": [
                ip_packet(CLIENT, SERVER, syn[:12]),
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, offset=3)),
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, offset=15)),
            ],
            "rx_dropped_tcp_checksum": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, checksum=1))],
            "rx_dropped_tcp_options": [
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, options=b"\x02\x00\x00\x00")),
                ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, options=b"\x01\x01\x02\xff")),
            ],
            "rx_dropped_tcp_flags_none": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=0))],
            "rx_dropped_tcp_flags_all": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=0x3F))],
            "rx_dropped_tcp_flags_syn_fin": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=3))],
            "rx_dropped_tcp_flags_syn_rst": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, flags=6))],
            "rx_dropped_port_zero": [ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 0, port))],
            "rx_dropped_icmp_truncated": [ip_packet(CLIENT, SERVER, b"\x08\0\0", protocol=1)],
            "rx_dropped_icmp_checksum": [ip_packet(CLIENT, SERVER, b"\x08\0\x12\x34\0\0\0\0", protocol=1)],
            "rx_dropped_udp_truncated": [ip_packet(CLIENT, SERVER, b"\0\x35\0", protocol=17)],
        }
        land = ip_packet(SERVER, SERVER, tcp_segment(SERVER, SERVER, port, port))
        for _ in range(20):
            for packets in bad.values():
                for packet in packets:
                    wire.send(packet)
            wire.send(land)
            # The port's packet socket puts fragments together in the kernel: these two never reach us.
            wire.send(ip_packet(CLIENT, SERVER, syn, fragment=0x2000))
            wire.send(ip_packet(CLIENT, SERVER, syn, fragment=5))
            wire.send(b"x" * 60, kind=0x88CC)
            wire.send(ip_packet(CLIENT, SERVER, syn), source=b"\x01\0\x5e\0\0\1")
            wire.send(ip_packet(CLIENT, SERVER, syn), target=b"\x02\x01\x02\x03\x04\x05")
            # The ring of the port holds so many frames only.
            time.sleep(0.01)
        # The same, cut at every byte.
        whole = ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, 5000, port, options=b"\x02\x04\x05\xb4", payload=b"data"))
        for cut in range(len(whole)):
            wire.send(whole[:cut])
        for name in bad:
            # A veth pads nothing, so a short frame reaches us as it is.
            counted(faults, [name], before, 20)
        counted(faults, ["rx_dropped_ether_type", "rx_dropped_source_mac", "rx_dropped_other_mac"], before, 20)
        now = faults.lab.stats()
        lands = sum(now.get(k, 0) - before.get(k, 0) for k in ("rx_dropped_land", "rx_dropped_ipv4_source_ours"))
        assert lands >= 20, lands
        assert now.get("flows_dropped_panic", 0) == 0


def random_frames_harm_nobody(faults):
    import random

    seed = int(os.environ.get("KNET_SEED", time.time_ns() & 0xFFFFFF))
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with under_redis(faults) as (redis, wire):
        for _ in range(20_000):
            options = chance.randbytes(4 * chance.randrange(11)) if chance.random() < 0.5 else b""
            segment = tcp_segment(
                CLIENT, SERVER, chance.choice([redis.peer.getsockname()[1], chance.randrange(65536)]),
                chance.choice([redis.port, chance.randrange(65536)]), seq=chance.getrandbits(32), ack=chance.getrandbits(32),
                flags=chance.randrange(256), options=options, payload=chance.randbytes(chance.randrange(50)),
            )
            packet = bytearray(ip_packet(CLIENT, SERVER, segment))
            if chance.random() < 0.3:
                packet[chance.randrange(len(packet))] ^= 1 << chance.randrange(8)
            if chance.random() < 0.1:
                packet = packet[:chance.randrange(len(packet))]
            wire.send(bytes(packet), chance.choice([0x0800] * 20 + [0x0806, 0x8100, 0x86DD]))
        assert faults.lab.stats().get("flows_dropped_panic", 0) == 0


def a_syn_flood_of_20_000_sources(faults):
    with under_redis(faults) as (redis, wire):
        before = faults.lab.stats()
        for n in range(20_000):
            source = f"10.77.{1 + n // 250 % 80}.{1 + n % 250}"
            wire.send(ip_packet(source, SERVER, tcp_segment(source, SERVER, 1024 + n % 60_000, redis.port, seq=n)))
        # A client that comes during the flood gets in by trying again, as on Linux.
        peer = connects(faults, redis.port, 60)
        assert redis.ask(peer, b"PING") == b"PONG"
        peer.close()
        now = faults.lab.stats()
        dropped = now["syn_dropped_backlog_full"] - before.get("syn_dropped_backlog_full", 0)
        assert dropped > 0 or now["syns_received"] - before["syns_received"] >= 20_000, now


def resets_and_syns_in_the_window_are_challenged(faults):
    """RFC 5961: only the exact sequence number resets; a SYN on a live connection never does."""
    with under_redis(faults) as (redis, wire):
        port = redis.peer.getsockname()[1]
        before = faults.lab.stats()
        for step in range(0, 1 << 32, 1 << 15):
            wire.send(ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, port, redis.port, seq=step | 1, flags=4)))
            if step % (1 << 17) == 0:
                wire.send(ip_packet(CLIENT, SERVER, tcp_segment(CLIENT, SERVER, port, redis.port, seq=step | 1, flags=2)))
        now = faults.lab.stats()
        sent = sum(now.get(k, 0) - before.get(k, 0) for k in ("challenge_acks_sent", "challenge_acks_limited"))
        assert sent > 0, now


def an_arp_flood_does_not_push_out_the_gateway(faults):
    with under_redis(faults) as (redis, wire):
        before = faults.lab.stats()
        for n in range(20_000):
            mac = b"\x02\x55" + struct.pack("!I", n)
            address = f"10.77.0.{1 + n % 254}" if n % 254 not in (0, 1) else f"10.77.0.{3 + n % 100}"
            wire.arp(1, mac, address, b"\0" * 6, SERVER)
            if n % 3 == 0:
                wire.arp(2, mac, address, wire.target, SERVER, to=wire.target)
        for cut in range(28):
            wire.send(b"\0\1\x08\0\6\4\0\1"[:cut] + b"\xff" * max(0, cut - 8), 0x0806)
        counted(faults, ["rx_arp_packets"], before, 10_000)


def the_address_of_another_station_is_counted_and_told(faults):
    with under_redis(faults) as (_, wire):
        before = faults.lab.stats()
        for _ in range(3):
            wire.arp(1, b"\x02\x66\x66\x66\x66\x66", SERVER, b"\0" * 6, SERVER)
            wire.arp(2, b"\x02\x66\x66\x66\x66\x66", SERVER, wire.mac, CLIENT)
        counted(faults, ["arp_duplicates"], before, 3)
        with open(f"{faults.lab.state}/server-host.log", encoding="utf-8", errors="replace") as log:
            text = log.read()
        assert "02:66:66:66:66:66" in text and SERVER in text, text[-500:]
        # We still say that the address is ours.
        faults.ip("c", "neigh", "flush", "dev", "veth0")


def the_peers_mac_changes(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    old = faults.ip("c", "-o", "link", "show", "veth0").split("link/ether ")[1].split()[0]
    try:
        for mac in ("02:aa:bb:cc:dd:01", old):
            faults.ip("c", "link", "set", "veth0", "down")
            faults.ip("c", "link", "set", "veth0", "address", mac)
            faults.ip("c", "link", "set", "veth0", "up")
            wire = Wire.__new__(Wire)
            with faults.lab.inside("c"):
                wire.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
                wire.socket.bind(("veth0", 0))
            ours = bytes.fromhex(mac.replace(":", ""))
            wire.arp(1, ours, CLIENT, b"\0" * 6, CLIENT)
            wire.close()
            begin = time.monotonic()
            echoes(peer, b"q" * 10_000)
            assert time.monotonic() - begin < 5
    finally:
        faults.ip("c", "link", "set", "veth0", "address", old)
    peer.close()
    faults.lab.end(server)


CASES = [
    garbage_frames_are_counted_and_dropped, random_frames_harm_nobody, a_syn_flood_of_20_000_sources,
    resets_and_syns_in_the_window_are_challenged, an_arp_flood_does_not_push_out_the_gateway,
    the_address_of_another_station_is_counted_and_told, the_peers_mac_changes,
]

if __name__ == "__main__":
    main_of("faults_frames", CASES)
