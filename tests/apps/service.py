#!/usr/bin/env python3
"""knetd as a service (common.mode 1): programs of several users on one host, Debian's own units, restarts, quotas.

Runs in a system of its own in which the deb is installed; needs root. Every service is started by its unit and the
drop-in of the package, in the confines that the unit asks for."""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from harness import CLIENT, ROOT, SERVER, Lab, main, wait_for
from package import Place, run
from redis import Resp

LONG = os.environ.get("KNET_TEST_LONG") == "1"
SUPPORT = os.path.join(ROOT, "tests", "support")
UNITS = "/lib/systemd/system"
DROP_INS = "/usr/share/knet/drop-ins"
CONFIG = "/etc/knet/knet_comm.conf"
HOST = "/run/knet/knetd.sock"
PRELOAD = "/usr/lib64/libknet_frame.so"
# Users of the test's programs: members of the group by their groups, and one who is not.
ALICE, BOB, STRANGER = 61001, 61002, 61003
CONNECTIONS = 512

NGINX = """
user www-data;
worker_processes 2;
pid /run/nginx.pid;
error_log /var/log/nginx/error.log;
events { worker_connections 512; }
http { access_log off; server { listen 10.77.0.1:80; location / { return 200 "nginx\\n"; } } }
"""
HAPROXY = """
global
    user haproxy
    group haproxy
    chroot /var/lib/haproxy
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend front
    bind 10.77.0.1:8080
    default_backend back
backend back
    server nginx 10.77.0.1:80
"""


class Service:
    """The system with the package, chroot'ed into, a lab, and knetd in its server's namespace."""

    def __init__(self):
        self.place = Place()
        self.place.build("1")
        self.stack = contextlib.ExitStack()
        root, _ = self.stack.enter_context(self.place.system("service"))
        run("chroot", root, "dpkg", "-i", self.place.deb(0))
        # Not chroot: from there no user namespace can be made (PrivateUsers=).
        os.chdir(root)
        run("pivot_root", ".", "mnt")
        os.chdir("/")
        run("umount", "-l", "/mnt")
        os.makedirs("/run/knet", exist_ok=True)
        self.lab = Lab()
        os.chmod(self.lab.work, 0o755)
        self.group = int(run("getent", "group", "knet").split(":")[2])
        with open(f"{self.lab.state}/server.conf", encoding="ascii") as file:
            config = json.load(file)
        config["common"]["mode"] = 1
        config["proto_stack"]["max_tcpcb"] = CONNECTIONS
        with open(CONFIG, "w", encoding="ascii") as file:
            json.dump(config, file)
        self.port = 7500
        self.knetd = None
        self.member = os.path.join(self.lab.work, "member")
        run("gcc", "-O2", "-Wall", "-o", self.member, os.path.join(ROOT, "tests", "c", "member.c"))
        self.start_knetd()

    @property
    def processes(self):
        return self.lab.processes

    def close(self):
        self.lab.close()

    def start_knetd(self):
        """As systemd does with Type=notify: ready when it says so."""
        path = "/run/notify.sock"
        with contextlib.suppress(OSError):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(path)
            listener.settimeout(20)
            log = open(os.path.join(self.lab.work, "knetd.log"), "ab")
            self.knetd = subprocess.Popen(
                ["ip", "netns", "exec", f"knet-{self.lab.name}-s", "/usr/bin/knetd"], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env={"NOTIFY_SOCKET": path, "PATH": os.environ["PATH"]}, start_new_session=True,
            )
            self.knetd.log = log.name
            log.close()
            self.lab.processes.append(self.knetd)
            try:
                assert listener.recv(100) == b"READY=1"
            except TimeoutError:
                raise AssertionError(f"knetd is not ready: {lines(self.knetd)[-5:]}") from None

    def stop_knetd(self, how):
        self.knetd.send_signal(how)
        self.knetd.wait(20)
        self.lab.processes.remove(self.knetd)

    def spawn(self, *command, log, user=ALICE, groups=None, env=None):
        """A program of a user in the server's namespace, preloaded as by a drop-in."""
        path = os.path.join(self.lab.work, log)
        groups = [self.group] if groups is None else groups
        identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--no-new-privs", "--bounding-set=-all",
                    f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"]
        with open(path, "ab") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"knet-{self.lab.name}-s", *identity, "env", f"LD_PRELOAD={PRELOAD}", *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={"PATH": os.environ["PATH"], **(env or {})},
                start_new_session=True,
            )
        process.log = path
        self.lab.processes.append(process)
        return process

    def python(self, code, *arguments, log, **options):
        path = os.path.join(self.lab.work, log)
        with contextlib.suppress(OSError):
            os.unlink(path)
        return self.spawn("/usr/bin/python3", "-u", "-c", code, *map(str, arguments), log=log, **options)

    def unit(self, name):
        """Starts a service by its unit and our drop-in."""
        path = os.path.join(self.lab.work, f"{name}.log")
        with open(path, "ab") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", f"knet-{self.lab.name}-s", "/usr/bin/python3", f"{SUPPORT}/service_unit.py",
                 f"{UNITS}/{name}.service", f"{DROP_INS}/{name}.conf"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )
        process.log = path
        self.lab.processes.append(process)
        return process

    def stats(self):
        """What knetd counts."""
        found = {}
        for line in run("knetctl", "stats", "--all", "--socket", HOST).splitlines():
            name, _, value = line.partition(" ")
            found[name] = int(value) if value.isdigit() else value
        return found

    def left_behind(self):
        """Programs that are gone and whose connections are not."""
        status = json.loads(run("knetctl", "status", "--json", "--socket", HOST))[0]
        return len([program for program in status["programs"] if program["left"]])

    def settle(self, families, seconds=20):
        """Waits until so many programs are attached, those that have left connections behind among them."""
        try:
            wait_for(f"{families} programs are attached", lambda: self.stats()["now.families"] == families, seconds)
        except AssertionError as error:
            told = {name: value for name, value in self.stats().items() if name.startswith("now.")}
            raise AssertionError(f"{error}: {told}") from None

    def end(self, *processes):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.lab.processes.remove(process)


def lines(process):
    with open(process.log, errors="replace", encoding="utf-8") as log:
        return log.read().splitlines()


def said(process, line, seconds=20, times=1):
    def has():
        found = [one for one in lines(process) if one.startswith(line)]
        assert process.poll() is None or len(found) >= times, (process.returncode, lines(process)[-10:])
        return found[times - 1 :]

    return wait_for(f"says {line!r}", has, seconds)[0]


def ask(service, port, text, end="c", until=b"\n"):
    """One question to a line or web server, on a connection of its own."""
    with service.lab.connect(port, 10, end=end) as peer:
        peer.sendall(text)
        got = b""
        while until not in got:
            part = peer.recv(65536)
            if not part:
                break
            got += part
        return got


def answers(service, port, text, wanted, seconds=20):
    """Waits until a server answers as it should."""
    def try_once():
        with contextlib.suppress(OSError):
            return wanted in ask(service, port, text, until=wanted)
        return False

    try:
        wait_for(f"port {port} answers", try_once, seconds)
    except AssertionError as error:
        logs = {os.path.basename(one.log): lines(one)[-8:] for one in service.lab.processes}
        raise AssertionError(f"{error}; {logs}") from None


GET = b"GET / HTTP/1.0\r\n\r\n"
VERSION = b"version\r\n"


def served_by_the_stack(service, before):
    after = service.lab.kernel_tcp()
    for name in ("PassiveOpens", "ActiveOpens", "InSegs"):
        assert after[name] == before[name], f"the kernel's {name} moved by {after[name] - before[name]}"


def knetd_is_ready_when_it_says_so(service):
    it = os.stat(HOST)
    assert it.st_mode & 0o777 == 0o660 and it.st_gid == service.group and it.st_uid == 0, oct(it.st_mode)
    stats = service.stats()
    assert stats["now.families"] == 0, stats
    # The port is open and announced before the first program comes.
    assert stats["port.tx_frames"] >= 1, stats


def a_stranger_stays_on_the_kernel_with_one_line(service):
    code = """
import socket
s = socket.socket()
try:
    s.bind(("10.77.0.1", 7400)); print("bound", flush=True)
except OSError as error:
    print("refused", error.errno, flush=True)
"""
    process = service.python(code, log="stranger.log", user=STRANGER, groups=[])
    process.wait(20)
    service.lab.processes.remove(process)
    told = lines(process)
    assert len([line for line in told if line.startswith("knet:")]) == 1 and "SupplementaryGroups=knet" in told[0], told
    assert told[-1] == "refused 99", told
    assert service.stats()["now.families"] == 0


def debians_units_are_served(service):
    """Redis, memcached, nginx and HAProxy with their own units and one drop-in, side by side."""
    with open("/etc/redis/redis.conf", "a", encoding="ascii") as file:
        file.write('\nbind 10.77.0.1\nprotected-mode no\nsave ""\n')
    with open("/etc/memcached.conf", "r+", encoding="ascii") as file:
        text = file.read().replace("-l 127.0.0.1", "-l 10.77.0.1").replace("-l ::1", "")
        file.seek(0)
        file.write(text)
        file.truncate()
    for path, text in (("/etc/nginx/nginx.conf", NGINX), ("/etc/haproxy/haproxy.cfg", HAPROXY)):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    os.makedirs("/run/memcached", exist_ok=True)
    shutil.chown("/run/memcached", "memcache")
    before = service.lab.kernel_tcp()
    units = {name: service.unit(name) for name in ("redis-server", "memcached", "nginx", "haproxy")}
    service.units = units
    answers(service, 6379, b"PING\r\n", b"+PONG")
    answers(service, 11211, VERSION, b"VERSION")
    answers(service, 80, GET, b"nginx\n")
    # HAProxy asks nginx: two programs on one host, at our own address.
    answers(service, 8080, GET, b"nginx\n")
    accepted = service.stats()["stack.flows_accepted"]
    for _ in range(25):
        assert b"+PONG" in ask(service, 6379, b"PING\r\n")
        assert b"VERSION" in ask(service, 11211, VERSION)
        assert b"nginx\n" in ask(service, 80, GET, until=b"nginx\n")
        assert b"nginx\n" in ask(service, 8080, GET, until=b"nginx\n")
    # Each question to HAProxy is two connections.
    assert service.stats()["stack.flows_accepted"] - accepted >= 125
    served_by_the_stack(service, before)
    for name, process in units.items():
        told = [line for line in lines(process) if line.startswith("knet:")]
        assert not told, (name, told)


def users(service):
    """Who runs under the preload in the server's namespace: user by pid."""
    found = {}
    for pid in run("ip", "netns", "pids", f"knet-{service.lab.name}-s").split():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
                if "libknet_frame" in file.read():
                    found[int(pid)] = os.stat(f"/proc/{pid}").st_uid
    return found


def channels(pid):
    """The channel memory that a process has mapped: inode numbers."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return set(re.findall(r" (\d+) +/memfd:knet", file.read()))


def each_sees_its_own_memory_only(service):
    by_user = {}
    for pid, user in users(service).items():
        by_user.setdefault(user, set()).update(channels(pid))
    assert len({frozenset(mapped) for mapped in by_user.values() if mapped}) >= 3, by_user
    alice = service.python(LISTEN, SERVER, 7410, log="alice.log", user=ALICE)
    bob = service.python(LISTEN, SERVER, 7411, log="bob.log", user=BOB)
    for process in (alice, bob):
        said(process, "listening")
    mapped = [set().union(*(channels(pid) for pid, user in users(service).items() if user == one)) for one in (ALICE, BOB)]
    assert all(mapped) and not mapped[0] & mapped[1], mapped
    service.end(alice, bob)


LISTEN = """
import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(16)
print("listening", flush=True)
while True:
    c, peer = s.accept()
    while data := c.recv(65536): c.sendall(data)
    c.close()
"""

# What happens to a port that somebody else has; the same program on the kernel says what is right.
PORTS = """
import errno, socket, sys
address, port = sys.argv[1], int(sys.argv[2])
def attempt(name, where, *options):
    s = socket.socket()
    for option in options:
        s.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        s.bind((where, port)); s.listen(4)
        print(name, "ok", flush=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)
    s.close()
attempt("plain", address)
attempt("reuseaddr", address, socket.SO_REUSEADDR)
attempt("reuseport", address, socket.SO_REUSEPORT)
attempt("any", "0.0.0.0")
attempt("any reuseaddr", "0.0.0.0", socket.SO_REUSEADDR)
print("end", flush=True)
"""
HOLD = """
import socket, sys, time
s = socket.socket()
for name in sys.argv[3:]:
    s.setsockopt(socket.SOL_SOCKET, getattr(socket, name), 1)
s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(4)
print("listening", flush=True)
time.sleep(60)
"""


def ports_are_arbitrated_as_on_linux(service):
    for options, other in (((), BOB), (("SO_REUSEADDR",), ALICE), (("SO_REUSEADDR",), BOB), (("SO_REUSEPORT",), BOB),
                           (("SO_REUSEPORT",), ALICE)):
        told = []
        # The kernel at an address of its own, then the stack at ours.
        for address, env in (("127.0.0.1", {}), (SERVER, {})):
            service.port += 1
            holder = service.python(HOLD, address, service.port, *options, log="holder.log", user=ALICE, env=env)
            said(holder, "listening")
            asking = service.python(PORTS, address, service.port, log="asking.log", user=other, env=env)
            said(asking, "end")
            asking.wait(10)
            service.lab.processes.remove(asking)
            told.append([line for line in lines(asking) if not line.startswith("knet:")])
            service.end(holder)
            # The port is free again at once, for anybody.
            again = service.python(HOLD, address, service.port, "SO_REUSEADDR", log="again.log", user=other, env=env)
            said(again, "listening")
            service.end(again)
        assert told[0] == told[1], f"held {options} by another {other == BOB}: Linux {told[0]}, here {told[1]}"


TALK = """
import hashlib, os, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data = os.urandom(1 << 20)
import threading
threading.Thread(target=lambda: s.sendall(data)).start()
got = b""
while len(got) < len(data): got += s.recv(65536)
assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
print("same", s.getpeername(), flush=True)
"""


def two_programs_talk_without_the_wire(service):
    server = service.python(LISTEN, SERVER, 7420, log="server.log", user=ALICE)
    said(server, "listening")
    kernel, before = service.lab.kernel_tcp(), service.stats()
    wire = lambda: [int(open(f"/proc/{server.pid}/net/dev", encoding="ascii").read().split("veth0:")[1].split()[n]) for n in (1, 9)]
    frames = wire()
    client = service.python(TALK, SERVER, 7420, log="client.log", user=BOB)
    said(client, "same")
    client.wait(10)
    service.lab.processes.remove(client)
    after = service.stats()
    assert after["stack.flows_accepted"] > before["stack.flows_accepted"]
    for name in ("port.tx_frames", "port.rx_frames"):
        # Somebody may have asked for an address meanwhile; 1 MiB each way is 1 400 frames.
        assert after[name] - before[name] < 20, (name, before[name], after[name])
    assert sum(wire()) - sum(frames) < 20, (frames, wire())
    served_by_the_stack(service, kernel)
    service.end(server)


# Tells what happens to an established connection, then goes on with new ones.
WATCH = """
import errno, socket, sys, time
def connect():
    s = socket.socket(); s.connect((sys.argv[1], int(sys.argv[2]))); return s
s = connect()
print("connected", flush=True)
while True:
    try:
        s.sendall(b"x"); assert s.recv(10) == b"x"
        time.sleep(0.01)
    except (OSError, AssertionError) as error:
        print("lost", errno.errorcode.get(getattr(error, "errno", 0), "EOF"), time.monotonic(), flush=True)
        break
while True:
    try:
        s = connect(); s.sendall(b"y")
        if s.recv(10) == b"y":
            print("back", flush=True); break
    except OSError as error:
        print("again", errno.errorcode[error.errno], flush=True)
    time.sleep(0.1)
time.sleep(60)
"""


def a_restart_of_knetd(service, how):
    with service.lab.inside("c"):
        listener = socket.create_server((CLIENT, 7430), backlog=64)
    peers = []

    def echo(peer):
        with contextlib.suppress(OSError), peer:
            while data := peer.recv(1000):
                peer.sendall(data)
            peers.append("end")
            return
        peers.append("reset")

    def serve():
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=echo, args=(peer,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    watchers = [service.python(WATCH, CLIENT, 7430, log=f"watch{user}.log", user=user) for user in (ALICE, BOB)]
    for watcher in watchers:
        said(watcher, "connected")
    begin = time.monotonic()
    service.stop_knetd(how)
    for watcher in watchers:
        word, name, at = said(watcher, "lost").split()
        assert name == "ECONNRESET" and float(at) - begin < 1, (word, name, float(at) - begin)
    if how == signal.SIGTERM:
        # What the program did not end is reset: its peer must not take it for the end of the data.
        wait_for("the peers learn it", lambda: len(peers) == 2)
        assert peers == ["reset", "reset"], peers
    service.start_knetd()
    for watcher in watchers:
        said(watcher, "back")
    before = service.lab.kernel_tcp()
    # The services were not restarted.
    answers(service, 6379, b"PING\r\n", b"+PONG")
    answers(service, 11211, VERSION, b"VERSION")
    answers(service, 80, GET, b"nginx\n")
    answers(service, 8080, GET, b"nginx\n")
    served_by_the_stack(service, before)
    service.end(*watchers)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def knetd_is_restarted(service):
    a_restart_of_knetd(service, signal.SIGTERM)


def knetd_is_killed(service):
    a_restart_of_knetd(service, signal.SIGKILL)


def clients_killed_at_random_disturb_nobody(service):
    """64 programs; one after the other is killed and comes back. The services and the others go on."""
    rounds = 1000 if LONG else 150
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    # Those that only the cases before have left behind are none of ours.
    wait_for("all programs that are attached live", lambda: service.left_behind() == 0, 30)
    attached = service.stats()["now.families"]
    with service.lab.inside("c"):
        listener = socket.create_server((CLIENT, 7440), backlog=1024)
    stop = threading.Event()

    def serve():
        import selectors
        ready = selectors.DefaultSelector()
        ready.register(listener, selectors.EVENT_READ)
        listener.setblocking(False)
        while not stop.is_set():
            for key, _ in ready.select(0.1):
                with contextlib.suppress(BlockingIOError):
                    if key.fileobj is listener:
                        ready.register(listener.accept()[0], selectors.EVENT_READ)
                        continue
                    try:
                        data = key.fileobj.recv(65536)
                        if data:
                            key.fileobj.sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        ready.unregister(key.fileobj)
                        key.fileobj.close()

    server = threading.Thread(target=serve, daemon=True)
    server.start()

    def start(number):
        log = f"member{number}.log"
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(service.lab.work, log))
        return service.spawn(service.member, SERVER, str(9000 + number), CLIENT, "7440", log=log, user=61100 + number % 8)

    members = [start(number) for number in range(64)]
    for one in members:
        said(one, "at work", 60)
    witness = Resp(service.lab.connect(6379, 10))
    memory = rss(service)
    for _ in range(rounds):
        number = dice.randrange(64)
        service.end(members[number])
        members[number] = start(number)
        if dice.random() < 0.5:
            time.sleep(dice.random() * 0.02)
        assert witness.ask("PING") == "PONG"
    for one in members:
        assert said(one, "at work", 60)
        # Nobody else lost a connection, was refused a port, or got another's bytes.
        told = [line for line in lines(one) if line != "at work"]
        assert not told, told
    service.settle(attached + 64, 30)
    grown = rss(service) - memory
    assert grown < 64 << 20, f"the host grew by {grown >> 20} MiB"
    service.end(*members)
    service.settle(attached, 30)
    assert witness.ask("PING") == "PONG"
    witness.close()
    stop.set()
    server.join()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def rss(service):
    pid = pid_of_knetd(service)
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"^VmRSS:\s+(\d+) kB", file.read(), re.M).group(1)) << 10


def pid_of_knetd(service):
    # `ip netns exec` has become it.
    return service.knetd.pid


# Opens connections until it gets no more, and says how many.
GREEDY = """
import errno, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
while len(held) < 2000:
    s = socket.socket()
    s.settimeout(3)
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
    except OSError as error:
        print("stopped", len(held), errno.errorcode.get(error.errno, error), flush=True)
        break
    held.append(s)
time.sleep(60)
"""


def one_program_leaves_room_for_the_others(service):
    with service.lab.inside("c"):
        listener = socket.create_server((CLIENT, 7450), backlog=2048)
    before = service.stats()["now.flows"]
    greedy = service.python(GREEDY, CLIENT, 7450, log="greedy.log", user=ALICE)
    words = said(greedy, "stopped", 60).split()
    most = int(words[1])
    assert words[2] in ("ENOBUFS", "EADDRNOTAVAIL", "ENOMEM"), words
    assert CONNECTIONS // 2 <= most < CONNECTIONS - before, f"{most} of {CONNECTIONS}"
    second = service.python(GREEDY, CLIENT, 7450, log="second.log", user=BOB)
    other = int(said(second, "stopped", 60).split()[1])
    assert other >= CONNECTIONS // 20, f"the second got {other}, the first {most}"
    # And a third, and those who were there before.
    for port, text, wanted in ((6379, b"PING\r\n", b"+PONG"), (11211, VERSION, b"VERSION"), (80, GET, b"nginx\n")):
        assert wanted in ask(service, port, text, until=wanted)
    service.end(greedy, second)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    wait_for("their connections are gone", lambda: service.stats()["now.flows"] <= before + 8, 30)
    assert service.stats()["lcore.flows_refused_quota"] >= 2


CASES = [
    knetd_is_ready_when_it_says_so,
    a_stranger_stays_on_the_kernel_with_one_line,
    debians_units_are_served,
    each_sees_its_own_memory_only,
    ports_are_arbitrated_as_on_linux,
    two_programs_talk_without_the_wire,
    knetd_is_restarted,
    knetd_is_killed,
    clients_killed_at_random_disturb_nobody,
    one_program_leaves_room_for_the_others,
]

if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIP service: needs root")
        sys.exit(0)
    for program in ("dpkg-deb", "redis-server", "memcached", "nginx", "haproxy", "setpriv", "gcc"):
        if not shutil.which(program):
            print(f"SKIP service: {program} is missing")
            sys.exit(0)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    main("service", CASES, Service, Service.close)
