#!/usr/bin/env python3
"""The payload stage under real servers: what is forbidden resets the connection at both ends and never arrives."""

import contextlib
import itertools
import json
import os
import resource
import socket
import struct
import subprocess
import time

from harness import ROOT, SERVER, Lab, main, passive_opens_unmoved, wait_for
from segments import Peer

PAGE = b"<html>" + b"knet " * 20_000 + b"</html>"
BAD_PAGE = PAGE[:70_000] + b"outbad" + PAGE[70_000:]


class Stage:
    """Labs one after the other, each with a pipeline of its own."""

    lab = None

    @property
    def processes(self):
        return self.lab.processes if self.lab else []

    @contextlib.contextmanager
    def up(self, device="af_packet"):
        self.lab = Lab(device)
        try:
            yield self.lab
        finally:
            self.lab.close()
            self.lab = None

    def use(self, rules, ends=("server",), **more):
        """Writes the pipeline into the configs of the lab that is up."""
        for end in ends:
            path = os.path.join(self.lab.state, f"{end}.conf")
            with open(path, encoding="ascii") as file:
                config = json.load(file)
            config["gpu"] = {"enabled": True, "pipeline": rules, **more}
            with open(path, "w", encoding="ascii") as file:
                json.dump(config, file)

    def driver(self, faults=""):
        """A stand-in for the GPU driver's library, which does what the faults say; its path."""
        library = os.path.join(self.lab.work, "libcuda.so.1")
        source = os.path.join(ROOT, "tests", "gpu", "standin.c")
        flags = ["-std=gnu11", "-O1", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", library, source, "-lpthread", "-lm"], check=True)
        self.file("libcuda.so.1.faults", faults)
        return library

    def file(self, name, text):
        path = os.path.join(self.lab.work, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def pattern(self, word, **more):
        return {"kernel": "pattern", "patterns_file": self.file(word, f"{word}\n"), **more}

    def redis(self, answers=None):
        lab = self.lab
        process = lab.start(
            "server", "redis-server", "--port", "6379", "--bind", SERVER, "--protected-mode", "no", "--save", "", "--dir",
            lab.work, log="redis.log",
        )

        def pong():
            try:
                with contextlib.closing(lab.connect(6379)) as peer:
                    return ask(peer, b"PING\r\n") == b"+PONG\r\n"
            except OSError:
                return False

        wait_for("redis answers", answers or pong, 20)
        return process


def ask(peer, request):
    peer.sendall(request)
    return peer.recv(1 << 16)


def is_reset(peer):
    """Whether the peer hears an RST before one byte more."""
    try:
        peer.recv(1 << 16)
    except ConnectionResetError:
        return True
    return False


def store(value):
    return b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n" % (len(value), value)


def redis_with_forbidden_requests_and_answers(stage):
    with stage.up() as lab:
        stage.use([stage.pattern("inbad", direction="rx"), stage.pattern("outbad", direction="tx", ports=[6379])])
        stage.redis()
        before, accepted = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0)
        # Whole, and cut at every place.
        for cut in range(5):
            peer = lab.connect(6379)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert ask(peer, store(b"harmless")) == b"+OK\r\n"
            request = store(b"xxinbadxx")
            at = request.index(b"inbad") + cut
            if cut:
                peer.sendall(request[:at])
                time.sleep(0.05)
                request = request[at:]
            peer.sendall(request)
            assert is_reset(peer), f"cut at {cut}"
            peer.close()
        peer = lab.connect(6379)
        assert ask(peer, b"GET k\r\n") == b"$8\r\nharmless\r\n", "what was forbidden was carried out"
        # Two harmless requests make a forbidden answer.
        assert ask(peer, store(b"out")) == b"+OK\r\n"
        assert ask(peer, b"APPEND k bad\r\n") == b":6\r\n"
        peer.sendall(b"GET k\r\n")
        assert is_reset(peer)
        peer.close()
        with contextlib.closing(lab.connect(6379)) as peer:
            assert ask(peer, b"PING\r\n") == b"+PONG\r\n", "the server lives"
        passive_opens_unmoved(lab, before, accepted, 7)
        stats = lab.stats()
        assert (stats["payload_flows_reset"], stats["payload_matched"]) == (6, 6), stats


def orders(request, at):
    """Ways in which segments of `request`, cut at `at` and behind it, come: lists of (offset, bytes)."""
    cuts = [0, at - 3, at, at + 2, at + 4, len(request)]
    parts = [(begin, request[begin:end]) for begin, end in zip(cuts, cuts[1:])]
    a, b, c, d, e = parts
    return {
        "in order": parts,
        "each one twice": [part for part in parts for _ in range(2)],
        "reordered": [a, d, c, e, b],
        "the last one first": [a, *reversed(parts[1:])],
        "resent behind later ones": [a, c, a, b, c, a, e, d],
        "overlapping": [a, (0, request[: at + 1]), (at - 2, request[at - 2 : at + 3]), (at, request[at:])],
    }


def forbidden_in(lab, port, harmless, end, request, word, number, seconds=10):
    """Sends a harmless request, whose answer has an end, then `request` in every order: each is reset and never answered."""
    for name, parts in orders(request, request.index(word)).items():
        peer = Peer(lab, port, 20_000 + next(number))
        peer.segment(0, harmless)
        peer.until(lambda peer=peer: peer.stream().endswith(end), "answer to what is harmless")
        answered = peer.stream()
        for offset, data in parts:
            peer.segment(len(harmless) + offset, data)
            peer.hear(0.02)
        peer.hear(seconds)
        assert peer.is_reset, name
        assert peer.stream() == answered, f"{name}: answered: {peer.stream()}"
        peer.close()


def forbidden_out(lab, port, harmless, request, word, number, seconds=10):
    """Asks for something harmless, acknowledges it late or never so that it is sent again, then for what is forbidden."""
    for acknowledges in (True, False):
        peer = Peer(lab, port, 20_000 + next(number))
        peer.acknowledges = acknowledges
        peer.segment(0, harmless)
        peer.until(peer.stream, "answer to what is harmless")
        if not acknowledges:
            peer.until(lambda peer=peer: max(peer.came.values()) > 1, "segment that is sent again")
        for cut in (0, 1):
            # The request itself comes twice, and cut in the wrong order.
            peer.segment(len(harmless) + 4, request[4:])
            peer.segment(len(harmless), request[: 4 + cut])
        peer.hear(seconds)
        assert peer.is_reset, f"acknowledges={acknowledges}"
        assert all(word not in part for part in peer.heard.values()), "forbidden bytes were on the wire"
        assert word not in peer.stream()
        peer.close()


def redis_whose_segments_are_reordered_and_resent(stage):
    for more in ({}, {"mode": "persistent", "required": True, "timeout_us": 10_000_000}):
        with stage.up() as lab:
            if more:
                more["driver_library"] = stage.driver()
            stage.use([stage.pattern("inbad", direction="rx"), stage.pattern("outbad", direction="tx", ports=[6379])], **more)
            stage.redis()
            with contextlib.closing(lab.connect(6379)) as peer:
                assert ask(peer, b"SET a out\r\n") == b"+OK\r\n"
                assert ask(peer, b"APPEND a bad\r\n") == b":6\r\n"
            before, accepted, number = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0), itertools.count()
            forbidden_in(lab, 6379, b"PING\r\n", b"PONG\r\n", store(b"xxinbadxx"), b"inbad", number)
            forbidden_out(lab, 6379, b"PING\r\n", b"GET a\r\n", b"outbad", number)
            passive_opens_unmoved(lab, before, accepted, 8)
            assert lab.stats()["payload_flows_reset"] == 8, lab.stats()
            with contextlib.closing(lab.connect(6379)) as peer:
                assert ask(peer, b"EXISTS k\r\n") == b":0\r\n", "what was forbidden was carried out"


def redis_on_a_gpu_that_a_stand_in_plays(stage):
    for mode in ("persistent", "launch"):
        with stage.up() as lab:
            rules = [stage.pattern("inbad", direction="rx"), {"kernel": "stats"}]
            more = {"mode": mode, "required": True, "timeout_us": 10_000_000}
            stage.use(rules, driver_library=stage.driver(), **more)
            stage.redis()
            before, accepted = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0)
            peer = lab.connect(6379)
            assert ask(peer, store(b"harmless")) == b"+OK\r\n"
            assert ask(peer, b"GET k\r\n") == b"$8\r\nharmless\r\n"
            request = store(b"xxinbadxx")
            peer.sendall(request[:-7])
            time.sleep(0.05)
            peer.sendall(request[-7:])
            assert is_reset(peer)
            peer.close()
            with contextlib.closing(lab.connect(6379)) as peer:
                assert ask(peer, b"PING\r\n") == b"+PONG\r\n", "the server lives"
            passive_opens_unmoved(lab, before, accepted, 2)
            stats = lab.stats()
            assert stats["payload_gpu_on"] == 1 and stats["payload_flows_reset"] == 1, stats
            assert stats["payload_chunks_offloaded"] >= 10 and "payload_chunks_redone" not in stats, stats


def segments_are_judged_by_the_gpu_where_they_lie(stage):
    for mode in ("persistent", "launch", "memops", "graph"):
        with stage.up() as lab:
            rules = [
                stage.pattern("inbad", attach="packet", direction="rx"),
                stage.pattern("outbad", attach="packet", direction="tx", ports=[6379]),
            ]
            more = {"mode": mode, "required": True, "timeout_us": 10_000_000}
            stage.use(rules, driver_library=stage.driver(), **more)
            stage.redis()
            before, accepted = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0)
            peer = lab.connect(6379)
            assert ask(peer, store(b"harmless")) == b"+OK\r\n"
            assert ask(peer, b"GET k\r\n") == b"$8\r\nharmless\r\n"
            peer.sendall(store(b"xxinbadxx"))
            assert is_reset(peer)
            peer.close()
            # Two harmless requests make a forbidden answer.
            peer = lab.connect(6379)
            assert ask(peer, b"GET k\r\n") == b"$8\r\nharmless\r\n", "what was forbidden was carried out"
            assert ask(peer, store(b"out")) == b"+OK\r\n"
            assert ask(peer, b"APPEND k bad\r\n") == b":6\r\n"
            peer.sendall(b"GET k\r\n")
            assert is_reset(peer)
            peer.close()
            with contextlib.closing(lab.connect(6379)) as peer:
                big = b"x" * 200_000
                assert ask(peer, store(big)) == b"+OK\r\n"
                peer.sendall(b"STRLEN k\r\nGET k\r\n")
                answer = b""
                while len(answer) < len(big) + 20:
                    answer += peer.recv(1 << 16)
                assert answer == b":200000\r\n$200000\r\n" + big + b"\r\n", "an answer in order"
            passive_opens_unmoved(lab, before, accepted, 3)
            stats = lab.stats()
            assert stats["payload_gpu_on"] == 1 and stats["payload_gpu_rings"] == 2, stats
            assert stats["payload_flows_reset"] == 2 and stats["payload_chunks_offloaded"] >= 100, stats
            # Nothing was copied: the stand-in fails what does not lie in registered memory.
            for none in ("payload_segment_bytes_copied", "payload_chunks_redone", "payload_segments_unheld"):
                assert none not in stats, stats
            wait_for("nothing is held", lambda: "payload_frames_held" not in lab.stats(), 20)


def segments_of_a_port_that_cannot_be_registered_are_copied(stage):
    with stage.up() as lab:
        stage.use(
            [stage.pattern("inbad", attach="packet", direction="rx")],
            # The host looks first whether it can be loaded at all: a pool and a ring.
            mode="persistent", required=True, timeout_us=10_000_000, driver_library=stage.driver("refuse=2@3"),
        )
        stage.redis()
        peer = lab.connect(6379)
        assert ask(peer, store(b"harmless")) == b"+OK\r\n"
        peer.sendall(store(b"xxinbadxx"))
        assert is_reset(peer)
        peer.close()
        stats = lab.stats()
        assert stats["payload_gpu_on"] == 1 and stats["payload_segment_bytes_copied"] > 50, stats


def redis_goes_on_when_the_gpu_hangs(stage):
    with stage.up() as lab:
        library = stage.driver("hang=1@9")
        stage.use([stage.pattern("inbad")], mode="persistent", driver_library=library, timeout_us=1_500_000)
        stage.redis()
        peer = lab.connect(6379)
        for number in range(20):
            assert ask(peer, store(b"%d" % number)) == b"+OK\r\n"
        stats = lab.stats()
        assert stats["payload_chunks_redone"] >= 1 and stats["payload_gpu_buffers_out"] >= 1, stats
        peer.sendall(store(b"inbad"))
        assert is_reset(peer), "the CPU judges"
        peer.close()
        # The late batch comes back, and the GPU works again.
        stage.file("libcuda.so.1.go", "")
        wait_for("the buffers are back", lambda: "payload_gpu_buffers_out" not in lab.stats(), 60)
        before = lab.stats()["payload_chunks_offloaded"]
        with contextlib.closing(lab.connect(6379)) as peer:
            assert ask(peer, b"PING\r\n") == b"+PONG\r\n"
            peer.sendall(store(b"inbad"))
            assert is_reset(peer)
        assert lab.stats()["payload_chunks_offloaded"] > before


def get(lab, target, parts=None, host=SERVER):
    """The answer, and whether the connection was reset; `parts` are the lengths of the pieces in which the request is sent."""
    request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    with contextlib.closing(lab.connect(8080)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        try:
            for cut in parts or []:
                peer.sendall(request[:cut])
                request = request[cut:]
                time.sleep(0.05)
            peer.sendall(request)
            while part := peer.recv(1 << 16):
                answer += part
        except ConnectionResetError:
            return answer, True
        return answer, False


@contextlib.contextmanager
def nginx(stage, rules, **more):
    """A lab with nginx and pages of which one is forbidden."""
    with stage.up() as lab:
        if more:
            more["driver_library"] = stage.driver()
        stage.use(rules(), **more)
        for name, page in (("good.html", PAGE), ("bad.html", BAD_PAGE), ("small.html", b"small"), ("out.html", b"an outbad page")):
            with open(os.path.join(lab.work, name), "wb") as file:
                file.write(page)
        os.chmod(lab.work, 0o755)
        config = stage.file(
            "nginx.conf",
            f"daemon off; master_process off; pid {lab.work}/nginx.pid; error_log {lab.work}/nginx.log;\n"
            "events { worker_connections 512; }\n"
            f"http {{ access_log {lab.work}/access.log; sendfile on; server {{ listen {SERVER}:8080; root {lab.work}; }} }}\n",
        )
        lab.start("server", "nginx", "-c", config, log="nginx.out")

        def answers():
            try:
                return get(lab, "/good.html")[0]
            except OSError:
                return False

        wait_for("nginx answers", answers, 20)
        yield lab


def nginx_does_not_send_a_forbidden_page(stage):
    def rules():
        return [stage.pattern("outbad", direction="tx"), {"kernel": "stats"}, {"kernel": "crc32c", "attach": "packet"}]

    with nginx(stage, rules) as lab:
        before, accepted = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0)
        for _ in range(10):
            answer, reset = get(lab, "/good.html")
            assert answer.endswith(PAGE) and not reset
            answer, reset = get(lab, "/bad.html")
            assert reset and b"outbad" not in answer and len(answer) < len(BAD_PAGE)
        passive_opens_unmoved(lab, before, accepted, 20)
        stats = lab.stats()
        assert stats.get("payload_flows_reset") == 10, stats
        assert stats["payload_stats_bytes"] > 10 * len(PAGE), stats


def nginx_in_both_directions_whole_split_reordered_and_resent(stage):
    def rules():
        return [stage.pattern("inbad", direction="rx", ports=[8080]), stage.pattern("outbad", direction="tx")]

    for more in ({}, {"mode": "persistent", "required": True, "timeout_us": 10_000_000}):
        with nginx(stage, rules, **more) as lab:
            before, accepted, number = lab.kernel_tcp(), lab.stats().get("flows_accepted", 0), itertools.count()
            # Whole, and cut at every place of the word.
            begin = len("GET /small.html?")
            for parts in ([], *([begin + cut] for cut in range(1, 5)), [begin + 1, 1, 1, 1]):
                answer, reset = get(lab, "/small.html?inbad", parts)
                assert reset and not answer, parts
            # The answers lie at one end or the other of a segment, as their heads are.
            for target in ("/out.html", "/bad.html"):
                answer, reset = get(lab, target)
                assert reset and b"outbad" not in answer, target
            assert get(lab, "/small.html")[0].endswith(b"small"), "the server lives"
            harmless = f"GET /small.html HTTP/1.1\r\nHost: {SERVER}\r\n\r\n".encode()
            forbidden_in(lab, 8080, harmless, b"small", harmless.replace(b"html", b"html?inbad"), b"inbad", number)
            forbidden_out(lab, 8080, harmless, harmless.replace(b"small", b"out"), b"outbad", number)
            passive_opens_unmoved(lab, before, accepted, 17)
            assert lab.stats()["payload_flows_reset"] == 16, lab.stats()
            with open(os.path.join(lab.work, "access.log"), encoding="utf-8") as file:
                assert "inbad" not in file.read(), "a forbidden request was carried out"


def segments_are_dropped_until_the_flow_is_reset(stage):
    with stage.up() as lab:
        stage.use([stage.pattern("inbad", direction="rx", attach="packet", on_match="drop")])
        stage.redis()
        peer = lab.connect(6379, timeout=120)
        assert ask(peer, store(b"harmless")) == b"+OK\r\n"
        # The kernel sends it again, each time after twice the time; a keepalive of ours would wait longer.
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000)
        peer.sendall(store(b"inbad"))
        try:
            assert not peer.recv(100)
        except (ConnectionResetError, TimeoutError):
            pass
        with contextlib.closing(lab.connect(6379)) as other:
            assert ask(other, b"GET k\r\n") == b"$8\r\nharmless\r\n"
        assert lab.stats()["payload_segments_dropped"] >= 3


def what_cannot_be_looked_at_does_not_pass(stage):
    with stage.up() as lab:
        stage.use([stage.pattern("inbad", direction="rx")])

        def accepts():
            with contextlib.suppress(OSError):
                lab.connect(6379).close()
                return True
            return False

        stage.redis(accepts)
        found = subprocess.run(["ip", "netns", "pids", f"knet-{lab.name}-s"], stdout=subprocess.PIPE, text=True, check=True)
        host = next(pid for pid in map(int, found.stdout.split()) if comm(pid).startswith("knetd"))
        with open(f"/proc/{host}/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        # Room for what the host does all day, and none to map the rings once more.
        soft, hard = resource.prlimit(host, resource.RLIMIT_AS)
        resource.prlimit(host, resource.RLIMIT_AS, (size + (32 << 20), hard))
        peer = lab.connect(6379)
        peer.sendall(b"PING\r\n")
        assert is_reset(peer)
        peer.close()
        stats = lab.stats()
        assert (stats["payload_failed"], stats["payload_flows_reset"]) == (1, 1), stats
        with open(os.path.join(lab.state, "server-host.log"), encoding="utf-8") as file:
            assert "payload event=no_mapping" in file.read()
        resource.prlimit(host, resource.RLIMIT_AS, (soft, hard))
        with contextlib.closing(lab.connect(6379)) as peer:
            assert ask(peer, b"PING\r\n") == b"+PONG\r\n", "the next one is looked at"


def comm(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def marks_and_mirrors(stage):
    with stage.up() as lab:
        mirror = os.path.join(lab.work, "mirror.pcap")
        stage.use(
            [
                stage.pattern("marked", on_match="mark", mark=42),
                stage.pattern("mirrored", direction="rx", on_match="mirror", mirror_file=mirror),
            ]
        )
        stage.redis()
        peer = lab.connect(6379)
        assert ask(peer, store(b"marked and mirrored")) == b"+OK\r\n"
        wait_for("the copy is written", lambda: os.path.getsize(mirror) > 24 + 16 + 40)
        with open(mirror, "rb") as file:
            data = file.read()
        assert struct.unpack_from("=IHHIIII", data)[0] == 0xA1B23C4D
        assert b"marked and mirrored" in data
        stats = lab.stats()
        assert (stats["payload_chunks_marked"], stats["payload_chunks_mirrored"]) == (1, 1), stats
        with open(os.path.join(lab.state, "server-host.log"), encoding="utf-8") as file:
            assert "mark=42" in file.read()


def both_ends_hide_what_is_on_the_wire(stage):
    with stage.up("unix") as lab:
        key = stage.file("key", "a7" * 32)
        stage.use([{"kernel": "chacha20", "key_file": key}], ends=("server", "client"))

        def cli(*words):
            return lab.client("timeout", "20", "redis-cli", "-h", SERVER, *words, check=False).strip()

        stage.redis(lambda: cli("ping") == "PONG")
        value = "x" * 100_000
        path = stage.file("value", value)
        lab.client("sh", "-c", f"redis-cli -h {SERVER} -x set k < {path}")
        assert cli("get", "k") == value
        # Who has no key reads noise, and Redis refuses what it reads.
        conf = os.path.join(lab.state, "client.conf")
        with open(conf, encoding="ascii") as file:
            config = json.load(file)
        del config["gpu"]
        with open(conf, "w", encoding="ascii") as file:
            json.dump(config, file)
        assert cli("ping") != "PONG"


def a_mark_is_a_socket_option(stage):
    with stage.up() as lab:
        stage.use([stage.pattern("marked", direction="rx", on_match="mark", mark=42)])
        lab.start("server", "python3", "-c", MARKS, log="marks.log")

        def open_():
            with contextlib.suppress(OSError):
                return lab.connect(7000)
            return None

        peer = wait_for("the server listens", open_, 20)
        assert ask(peer, b"plain") == b"0"
        assert ask(peer, b"so marked") == b"42"
        assert ask(peer, b"plain") == b"42", "the last mark of the connection"
        peer.close()


MARKS = f"""
import socket
s = socket.create_server(("{SERVER}", 7000))
while True:
    peer, _ = s.accept()
    while peer.recv(100):
        peer.sendall(b"%d" % peer.getsockopt(socket.SOL_SOCKET, socket.SO_MARK))
"""


def a_rule_that_cannot_be_loaded_is_told(stage):
    with stage.up() as lab:
        rules = stage.file("rules", 'fine\n"open\n')
        stage.use([{"kernel": "pattern", "patterns_file": rules}])
        process = lab.start("server", "python3", "-c", LISTEN, log="listen.log")
        process.wait(20)
        with open(process.log, encoding="utf-8") as file:
            said = file.read()
        assert f"patterns_file {rules}: line 2: the closing quote is missing" in said, said
        assert process.returncode == 7, "the call says that nobody serves the address"


LISTEN = f"""
import errno, socket, sys
s = socket.socket()
try:
    s.bind(("{SERVER}", 7000)); s.listen()
except OSError as error:
    sys.exit(7 if error.errno == errno.EADDRNOTAVAIL else 8)
"""


if __name__ == "__main__":
    main(
        "payload",
        [
            redis_with_forbidden_requests_and_answers,
            redis_whose_segments_are_reordered_and_resent,
            redis_on_a_gpu_that_a_stand_in_plays,
            segments_are_judged_by_the_gpu_where_they_lie,
            segments_of_a_port_that_cannot_be_registered_are_copied,
            redis_goes_on_when_the_gpu_hangs,
            nginx_does_not_send_a_forbidden_page,
            nginx_in_both_directions_whole_split_reordered_and_resent,
            segments_are_dropped_until_the_flow_is_reset,
            what_cannot_be_looked_at_does_not_pass,
            marks_and_mirrors,
            a_mark_is_a_socket_option,
            both_ends_hide_what_is_on_the_wire,
            a_rule_that_cannot_be_loaded_is_told,
        ],
        Stage,
        lambda stage: stage.lab and stage.lab.close(),
    )
