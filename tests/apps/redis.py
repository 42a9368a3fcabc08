#!/usr/bin/env python3
"""An unmodified Redis under the shim on a DPDK port (af_packet on a veth), its clients on the kernel."""

import os
import signal
import subprocess
import threading
import time

from harness import CLIENT, SERVER, Lab, main, passive_opens_unmoved, reached, wait_for

PORT = 6379


class Resp:
    """The little of Redis' protocol that the tests need."""

    def __init__(self, peer):
        self.peer = peer
        self.buffer = b""

    def send(self, *words):
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.peer.sendall(b"".join(parts))

    def line(self):
        while b"\r\n" not in self.buffer:
            self.fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def fill(self):
        more = self.peer.recv(1 << 20)
        if not more:
            raise EOFError("the server closed")
        self.buffer += more

    def exactly(self, count):
        parts, have = [self.buffer], len(self.buffer)
        while have < count:
            more = self.peer.recv(1 << 20)
            if not more:
                raise EOFError("the server closed")
            parts.append(more)
            have += len(more)
        everything = b"".join(parts)
        self.buffer = everything[count:]
        return everything[:count]

    def reply(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            return self.exactly(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise AssertionError(f"not RESP: {line!r}")

    def ask(self, *words):
        self.send(*words)
        return self.reply()

    def close(self):
        self.peer.close()


def answers(connect):
    """Whether the Redis that `connect` leads to answers."""
    try:
        client = connect(timeout=1.0)
        try:
            return client.ask("PING") == "PONG"
        finally:
            client.close()
    except OSError:
        return False


class Redis:
    def __init__(self):
        self.lab = Lab()
        self.server = None
        self.start()

    @property
    def processes(self):
        return self.lab.processes

    def start(self, *options, wait=True):
        self.server = self.lab.start(
            "server", "redis-server", "--port", str(PORT), "--bind", SERVER, "--protected-mode", "no", "--save", "",
            "--dir", self.lab.work, *options, log="redis.log",
        )
        if wait:
            self.wait()

    def wait(self):
        wait_for("redis answers PING", lambda: answers(self.client), 15)

    def client(self, timeout=20.0, port=PORT, address=SERVER, end="c"):
        return Resp(self.lab.connect(port, timeout, address, end))

    def restart(self, *options):
        self.lab.end(self.server)
        self.start(*options)


def ping_set_get(redis):
    before, accepted = redis.lab.kernel_tcp(), redis.lab.stats().get("flows_accepted", 0)
    for n in range(100):
        client = redis.client()
        assert client.ask("PING") == "PONG"
        assert client.ask("SET", f"key{n}", f"value{n}") == "OK"
        assert client.ask("GET", f"key{n}") == f"value{n}".encode()
        client.close()
    passive_opens_unmoved(redis.lab, before, accepted, 100)


def pipelining(redis):
    client = redis.client()
    for depth in (16, 512):
        for n in range(depth):
            client.send("SET", f"p{n}", n)
        assert [client.reply() for _ in range(depth)] == ["OK"] * depth
    client.close()


def a_100_mb_value(redis):
    client = redis.client(timeout=60.0)
    value = os.urandom(1 << 20) * 100
    assert client.ask("SET", "big", value) == "OK"
    assert client.ask("GET", "big") == value
    client.ask("DEL", "big")
    client.close()


def multi_exec(redis):
    client = redis.client()
    client.ask("DEL", "n")
    assert client.ask("MULTI") == "OK"
    assert client.ask("INCR", "n") == "QUEUED"
    assert client.ask("INCR", "n") == "QUEUED"
    assert client.ask("EXEC") == [1, 2]
    client.close()


def publish_to_100_subscribers(redis):
    subscribers = [redis.client() for _ in range(100)]
    for subscriber in subscribers:
        assert subscriber.ask("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    client = redis.client()
    for n in range(20):
        assert client.ask("PUBLISH", "news", n) == 100
    for subscriber in subscribers:
        assert [subscriber.reply()[2] for _ in range(20)] == [str(n).encode() for n in range(20)]
        subscriber.close()
    client.close()


def blpop_with_time_out(redis):
    client = redis.client()
    begin = time.monotonic()
    assert client.ask("BLPOP", "nothing", 1) is None
    assert 0.9 < time.monotonic() - begin < 3
    client.close()


def client_kill(redis):
    victim, client = redis.client(), redis.client()
    number = victim.ask("CLIENT", "ID")
    assert client.ask("CLIENT", "KILL", "ID", number) == 1
    try:
        victim.reply()
        raise AssertionError("the killed client still gets replies")
    except (EOFError, ConnectionResetError):
        pass
    client.close()


def ten_thousand_clients(redis):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 12_000
    if hard < wanted:
        return f"the descriptor limit {hard} is below {wanted}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    redis.restart("--maxclients", "11000")
    before, accepted = redis.lab.kernel_tcp(), redis.lab.stats().get("flows_accepted", 0)
    clients = [redis.client() for _ in range(10_000)]
    for client in clients:
        client.send("PING")
    for client in clients:
        assert client.reply() == "PONG"
    passive_opens_unmoved(redis.lab, before, accepted, 10_000)
    for client in clients:
        client.close()
    redis.restart()


def maxclients_refuses(redis):
    redis.restart("--maxclients", "10")
    clients = [redis.client() for _ in range(10)]
    assert all(client.ask("PING") == "PONG" for client in clients)
    extra = redis.client()
    try:
        reply = extra.ask("PING")
        assert isinstance(reply, RuntimeError) and "max number of clients" in str(reply), reply
    except ConnectionResetError:
        pass  # Redis writes the error and closes with our PING unread: a reset, as on the kernel.
    for client in clients + [extra]:
        client.close()
    redis.restart()


def bgsave_under_load(redis):
    client, loader = redis.client(), redis.client()
    stop = threading.Event()
    faults = []

    def load():
        n = 0
        while not stop.is_set():
            n += 1
            if loader.ask("SET", f"load{n % 1000}", f"{n}") != "OK":
                faults.append(n)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for n in range(2_000):
            client.ask("SET", f"kept{n}", f"value{n}")
        assert "Background saving started" in client.ask("BGSAVE")
        wait_for("BGSAVE ends", lambda: b"rdb_bgsave_in_progress:0" in client.ask("INFO", "persistence"), 20)
        assert b"rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence")
        assert client.ask("CONFIG", "SET", "appendonly", "yes") == "OK"
        wait_for("the AOF is there", lambda: b"aof_rewrite_in_progress:0" in client.ask("INFO", "persistence"), 20)
        reply = client.ask("BGREWRITEAOF")
        assert "started" in reply or "scheduled" in reply, reply
        wait_for("the AOF rewrite ends", lambda: b"aof_rewrite_in_progress:0" in client.ask("INFO", "persistence"), 20)
        assert client.ask("CONFIG", "SET", "appendonly", "no") == "OK"
    finally:
        stop.set()
        thread.join()
    assert not faults
    # The dump, loaded by a Redis on the kernel, holds the same.
    copy = subprocess.Popen(
        ["ip", "netns", "exec", f"knet-{redis.lab.name}-c", "redis-server", "--port", "6400", "--bind", "127.0.0.1", "--save",
         "", "--dir", redis.lab.work, "--appendonly", "no", "--dbfilename", "dump.rdb"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        def loaded():
            try:
                return redis.client(port=6400, address="127.0.0.1")
            except OSError:
                return None

        other = wait_for("the kernel Redis is up", loaded)
        assert other.ask("MGET", *(f"kept{n}" for n in range(2_000))) == [f"value{n}".encode() for n in range(2_000)]
        other.close()
    finally:
        copy.terminate()
        copy.wait()
    for peer in (client, loader):
        peer.close()


def a_replica_on_the_other_side_of_the_wire(redis):
    replica = redis.lab.start(
        "client", "redis-server", "--port", "6500", "--bind", CLIENT, "--protected-mode", "no", "--save", "",
        "--replicaof", f"{SERVER} {PORT}", "--dbfilename", "replica.rdb", log="replica.log",
    )
    try:
        client = redis.client()
        client.ask("SET", "replicated", "yes")

        def arrived():
            try:
                other = redis.client(port=6500, address=CLIENT)
            except OSError:
                return False
            try:
                return other.ask("GET", "replicated") == b"yes"
            finally:
                other.close()

        wait_for("the replica has the key", arrived, 20)
        client.close()
    finally:
        redis.lab.end(replica)


def a_replica_of_a_kernel_master(redis):
    master = redis.lab.start(
        "client", "redis-server", "--port", "6501", "--bind", CLIENT, "--protected-mode", "no", "--save", "",
        "--dbfilename", "master.rdb", log="master.log",
    )
    try:
        def up():
            try:
                return redis.client(port=6501, address=CLIENT)
            except OSError:
                return None

        other = wait_for("the master is up", up)
        other.ask("SET", "from-master", "yes")
        client = redis.client()
        assert client.ask("REPLICAOF", CLIENT, "6501") == "OK"
        wait_for("the key has come", lambda: client.ask("GET", "from-master") == b"yes", 20)
        assert client.ask("REPLICAOF", "NO", "ONE") == "OK"
        other.close()
        client.close()
    finally:
        redis.lab.end(master)


def its_tools_at_a_kernel_redis(redis):
    """redis-cli and redis-benchmark under the shim; the server is the kernel's."""
    server = redis.lab.start(
        "client", "redis-server", "--port", "6502", "--bind", CLIENT, "--protected-mode", "no", "--save", "", log="kernel.log",
    )
    there = ("-h", CLIENT, "-p", "6502")
    try:
        wait_for("the kernel's redis answers", lambda: answers(lambda timeout: redis.client(timeout, 6502, CLIENT)), 15)
        with reached(redis.lab, 2 + 40):
            assert redis.lab.shimmed("redis-cli", *there, "set", "key", "value").strip() == "OK"
            assert redis.lab.shimmed("redis-cli", *there, "get", "key").strip() == "value"
            for pipeline in ("1", "16"):
                out = redis.lab.shimmed("redis-benchmark", *there, "-t", "set,get", "-n", "5000", "-c", "20", "-P", pipeline, "-q")
                assert out.count("requests per second") >= 2, out
    finally:
        redis.lab.end(server)


def shutdown_and_restart_on_the_same_port(redis):
    client = redis.client()
    client.send("SHUTDOWN", "NOSAVE")
    try:
        client.reply()
    except (EOFError, ConnectionResetError):
        pass
    redis.server.wait(10)
    assert redis.server.returncode == 0, redis.server.returncode
    redis.start()
    client = redis.client()
    assert client.ask("PING") == "PONG"
    client.close()


def kill_9_and_restart_at_once(redis):
    client = redis.client()
    client.ask("SET", "a", "b")
    children = subprocess.run(
        ["ip", "netns", "pids", f"knet-{redis.lab.name}-s"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    for pid in children:
        with open(f"/proc/{pid}/comm", encoding="ascii") as comm:
            if comm.read().startswith("redis-server"):
                os.kill(int(pid), signal.SIGKILL)
    try:
        assert client.peer.recv(1) == b""
    except ConnectionResetError:
        pass
    redis.server.wait(10)
    redis.start()
    client = redis.client()
    assert client.ask("PING") == "PONG"
    client.close()


def kill_9_while_a_bgsave_child_lives(redis):
    client = redis.client()
    for n in range(100):
        client.ask("SET", f"slow{n}", n)
    client.ask("CONFIG", "SET", "rdb-key-save-delay", "200000")  # 0.2 s a key: the child lives for 20 s and more
    assert "started" in client.ask("BGSAVE")
    info = client.ask("INFO", "server").decode()
    pid = int(info.split("process_id:")[1].split()[0])
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = [int(child) for child in file.read().split()]
    assert children, "no BGSAVE child"
    os.kill(pid, signal.SIGKILL)
    try:
        assert client.peer.recv(1) == b""
    except ConnectionResetError:
        pass
    redis.server.wait(10)
    assert os.path.exists(f"/proc/{children[0]}"), "the child ended too early to matter"
    redis.start()
    client = redis.client()
    assert client.ask("PING") == "PONG"
    client.close()
    os.kill(children[0], signal.SIGKILL)


def daemonize_yes(redis):
    redis.lab.end(redis.server)
    pidfile = os.path.join(redis.lab.work, "redis.pid")
    redis.start("--daemonize", "yes", "--pidfile", pidfile)
    with open(pidfile, encoding="ascii") as file:
        pid = int(file.read())
    client = redis.client()
    assert client.ask("PING") == "PONG"
    os.kill(pid, signal.SIGTERM)
    wait_for("the daemon ends", lambda: not os.path.exists(f"/proc/{pid}"))
    client.close()
    redis.start()


def wildcard_bind_answers_on_loopback_too(redis):
    redis.lab.end(redis.server)
    redis.server = redis.lab.start(
        "server", "redis-server", "--port", str(PORT), "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "",
        "--dir", redis.lab.work, log="redis.log",
    )
    redis.wait()
    wire = redis.client()
    local = redis.client(address="127.0.0.1", end="s")
    for n in range(50):
        assert wire.ask("SET", "w", n) == "OK"
        assert local.ask("GET", "w") == str(n).encode()
    wire.close()
    local.close()
    redis.restart()


def io_threads_2(redis):
    redis.restart("--io-threads", "2", "--io-threads-do-reads", "yes")
    out = redis.lab.client(
        "redis-benchmark", "-h", SERVER, "-p", str(PORT), "-t", "set,get", "-c", "50", "-n", "20000", "-q"
    )
    assert "SET" in out and "GET" in out, out
    redis.restart()


def redis_benchmark_completes(redis):
    for options in (["-c", "50"], ["-c", "50", "-P", "16"], ["-c", "10", "-d", "10000"]):
        out = redis.lab.client(
            "redis-benchmark", "-h", SERVER, "-p", str(PORT), "-t", "set,get", "-n", "20000", "-q", *options
        )
        assert out.count("requests per second") >= 2, out


# Takes a connection, sends until nothing fits any more, at most 1 MB, says how much that was, and ends.
SENDER = """
import os, select, signal, socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(1)
print("listening", flush=True)
c, _ = s.accept()
if sys.argv[4] == "unread":
    c.recv(1, socket.MSG_PEEK)
c.setblocking(False)
n = 0
while n < 1000000 and select.select([], [c], [], 0.5)[1]:
    n += c.send(b"x" * (1000000 - n))
print("sent", n, flush=True)
if sys.argv[3] == "_exit":
    os._exit(0)
os.kill(os.getpid(), getattr(signal, sys.argv[3]))
"""


def what_a_peer_gets(redis, port, how, reads, *options):
    """Of a sender that ends: bytes sent, bytes received, and how the connection ended."""
    log = os.path.join(redis.lab.work, "sender.log")
    if os.path.exists(log):
        os.unlink(log)
    server = redis.lab.start("server", *options, "python3", "-c", SENDER, SERVER, str(port), how, reads, log="sender.log")

    def told(word):
        with open(log, encoding="utf-8") as file:
            return [line.split() for line in file if line.startswith(word)]

    wait_for("the sender listens", lambda: told("listening"))
    peer = redis.lab.connect(port)
    if reads == "unread":
        peer.sendall(b"nobody reads this")
    server.wait(15)
    sent = int(wait_for("the sender says how much", lambda: told("sent"))[0][1])
    received = 0
    try:
        while part := peer.recv(1 << 16):
            received += len(part)
        end = "FIN"
    except ConnectionResetError:
        end = "RST"
    peer.close()
    return sent, received, end


def what_send_accepted_arrives_however_the_program_ends(redis):
    """By a signal's default action, _exit or kill -9, none of which runs code of ours."""
    for number, how in enumerate(("SIGTERM", "_exit", "SIGKILL")):
        sent, received, end = what_a_peer_gets(redis, 7000 + number, how, "read")
        assert sent > 100_000 and (received, end) == (sent, "FIN"), (how, sent, received, end)


def unread_bytes_end_it_as_linux_does(redis):
    for number, how in enumerate(("SIGTERM", "_exit", "SIGKILL")):
        end = what_a_peer_gets(redis, 7010 + number, how, "unread")[2]
        assert end == "RST", (how, end)


CASES = [
    ping_set_get, pipelining, a_100_mb_value, multi_exec, publish_to_100_subscribers, blpop_with_time_out, client_kill,
    redis_benchmark_completes, maxclients_refuses, ten_thousand_clients, bgsave_under_load,
    a_replica_on_the_other_side_of_the_wire, a_replica_of_a_kernel_master, shutdown_and_restart_on_the_same_port,
    kill_9_and_restart_at_once, kill_9_while_a_bgsave_child_lives, daemonize_yes, wildcard_bind_answers_on_loopback_too, io_threads_2,
    what_send_accepted_arrives_however_the_program_ends, unread_bytes_end_it_as_linux_does,
]

# Cases that end with another server process: a host inside the program counts from 0 then.
RESTARTED = [
    shutdown_and_restart_on_the_same_port, kill_9_and_restart_at_once, kill_9_while_a_bgsave_child_lives, daemonize_yes,
    what_send_accepted_arrives_however_the_program_ends, unread_bytes_end_it_as_linux_does,
    wildcard_bind_answers_on_loopback_too, maxclients_refuses, ten_thousand_clients, io_threads_2,
]
# Cases of a killed server whose clients hear of it: from a host that outlives it.
OUTLIVED = [kill_9_and_restart_at_once, kill_9_while_a_bgsave_child_lives]
# Cases in which the kernel serves somebody too: on loopback.
KERNEL_TOO = [wildcard_bind_answers_on_loopback_too]


def served(case):
    """The case, in which the stack accepts connections and the kernel of the server's namespace has none (design section 7)."""
    def run(redis):
        inline = os.environ.get("KNET_TEST_PROGRESS") == "inline"
        if case in OUTLIVED and inline:
            return "inline progress: nothing is sent for a program that was killed (docs/inline.md)"
        kernel, accepted = redis.lab.kernel_tcp(), redis.lab.stats().get("flows_accepted", 0)
        if case in RESTARTED and inline:
            accepted = 0
        reason = case(redis)
        after = redis.lab.kernel_tcp()
        moved = {name: after[name] - kernel[name] for name in ("PassiveOpens", "ActiveOpens", "InSegs")}
        assert case in KERNEL_TOO or not any(moved.values()), f"the kernel served some: {moved}"
        assert isinstance(reason, str) or redis.lab.stats().get("flows_accepted", 0) > accepted, "the stack accepted nobody"
        return reason

    run.__name__ = case.__name__
    return run


if __name__ == "__main__":
    main("redis", [*map(served, CASES), its_tools_at_a_kernel_redis], Redis, lambda redis: redis.lab.close())
