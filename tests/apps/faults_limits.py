#!/usr/bin/env python3
"""Programs that are limited or confined, and what they run out of. Needs root."""

import contextlib
import os
import resource
import socket
import time

from faults_parts import LIMITED, answers, connects, echoes, lines, main_of, said, serves
from harness import SERVER, wait_for


# Accepts until there is no number left, then frees one at a word on its first connection.
EMFILE = r"""
import errno, os, resource, select, socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(256)
how = sys.argv[3]
e = select.epoll()
e.register(l, select.EPOLLIN)
if how == "epoll": l.setblocking(False)
print("listening", flush=True)
kept = []
told = False
while True:
    if how == "epoll":
        assert e.poll(20)
    try:
        c, _ = l.accept()
    except OSError as error:
        if not told:
            print(errno.errorcode[error.errno], flush=True)
            told = True
        if kept and select.select([kept[0]], [], [], 0.01)[0]:
            first = kept.pop(0)
            first.recv(1)
            first.close()
        continue
    c.sendall(b"hello")
    kept.append(c)
    print("accepted", len(kept), flush=True)
"""


def no_number_left_in_the_middle_of_accept(faults):
    """The connection stays queued, and is accepted as soon as a number is free."""
    for how in ("blocking", "epoll"):
        faults.port += 10
        server = faults.python(
            EMFILE, SERVER, faults.port, how, log="emfile.log", prefix=("prlimit", "--nofile=64:64"),
        )
        said(server, "listening")
        peers = [faults.lab.connect(faults.port) for _ in range(80)]
        said(server, "EMFILE")
        got = []
        for peer in peers:
            peer.settimeout(0.3)
            try:
                got.append(peer.recv(5))
            except TimeoutError:
                break
        served = len(got)
        assert 30 < served < 64 and all(text == b"hello" for text in got), (how, served)
        for n in range(10):
            # The one that is closed makes room for exactly one.
            peers[n].sendall(b"x")
            peers[served + n].settimeout(5)
            assert peers[served + n].recv(5) == b"hello"
        for peer in peers:
            peer.close()
        faults.lab.end(server)


ENOUGH = r"""
import resource, socket, sys, threading
kept = []
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(1100)
print("listening", flush=True)
n = int(sys.argv[3])
for _ in range(n):
    kept.append(l.accept()[0])
assert len({c.fileno() for c in kept}) == n
for c in kept:
    c.sendall(b"%08d" % c.fileno())
print("served", flush=True)
kept[0].recv(1)
"""


def a_thousand_connections_under_a_soft_limit_of_1024(faults):
    for limit, count in (("1024:4096", 1000), ("256:256", 220)):
        faults.port += 10
        server = faults.python(ENOUGH, SERVER, faults.port, count, log="many.log", prefix=("prlimit", f"--nofile={limit}"))
        said(server, "listening")
        peers = [faults.lab.connect(faults.port) for _ in range(count)]
        said(server, "served")
        numbers = {peer.recv(8, socket.MSG_WAITALL) for peer in peers}
        assert len(numbers) == count
        for peer in peers:
            peer.close()
        faults.lab.end(server)


def limits_of_the_program_do_not_bind_the_host(faults):
    for limit in ("--fsize=0:", "--memlock=65536", "--core=0", "--nproc=10000", "--stack=262144"):
        faults.no_host()
        faults.port += 10
        # Its output goes through a pipe: a file could not grow under --fsize=0.
        piped = ("bash", "-c", f'prlimit {limit} "$@" 2>&1 | cat', "limit")
        server = faults.python(LIMITED, SERVER, faults.port, log="limit.log", prefix=piped)
        said(server, "listening")
        peer = connects(faults)
        echoes(peer, b"w" * 300_000)
        peer.close()
        faults.lab.end(server) if server.poll() is None else None
        assert lines(server) == ["listening"], (limit, lines(server))


def a_hard_limit_on_file_size_is_one_line(faults):
    faults.no_host()
    faults.port += 10
    piped = ("bash", "-c", 'prlimit --fsize=0:0 "$@" 2>&1 | cat', "limit")
    server = faults.python(LIMITED, SERVER, faults.port, log="limit.log", prefix=piped)
    server.wait(20)
    out = lines(server)
    assert len(out) == 2 and out[1] == "errno 99" and "file size" in out[0], out
    # The host that could not serve is not met by the next program.
    server = faults.echo()
    serves(faults)
    faults.lab.end(server)


WALKS = r"""
import os, resource, socket, sys
l = socket.socket()
before = {int(name) for name in os.listdir("/proc/self/fd")}
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
# As those do who do not know what they were given: by the numbers below the limit, and by what is seen.
for fd in [*range(3, int(sys.argv[3])), *map(int, os.listdir("/proc/self/fd"))]:
    if fd > 2 and fd != l.fileno():
        try:
            os.close(fd)
        except OSError:
            pass
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(64)
print("listening", flush=True)
kept = []
while True:
    c, _ = l.accept()
    kept.append(c)
    # The lowest numbers that are free are the program's.
    print("number", c.fileno(), flush=True)
    c.sendall(c.recv(100))
"""


def a_program_that_lowers_its_limit_and_closes_what_it_sees(faults):
    """Our own numbers lie above its new limit, or just below it: they stay, and the program gets all others."""
    for limit in (900, 256, 64):
        faults.port += 10
        server = faults.python(WALKS, SERVER, faults.port, limit, log="walks.log")
        said(server, "listening")
        peers = [connects(faults) for _ in range(1)]
        echoes(peers[0])
        for _ in range(19):
            peers.append(faults.lab.connect(faults.port))
            echoes(peers[-1])
        numbers = [int(line.split()[1]) for line in lines(server) if line.startswith("number")]
        assert numbers == list(range(4, 24)), (limit, numbers)
        assert not any(line.startswith("knet:") for line in lines(server)), lines(server)
        for peer in peers:
            peer.close()
        faults.lab.end(server)


POOR = r"""
import os, resource, select, socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(64)
print("listening", flush=True)
c, _ = l.accept()
e = select.epoll()
e.register(c, select.EPOLLIN | select.EPOLLRDHUP)
c.sendall(c.recv(100))
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
kept = []
try:
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
def child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except OSError as error:
            print("child errno", error.errno, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
child(lambda: c.send(b"child"))
child(lambda: c.getpeername())
child(lambda: c.shutdown(socket.SHUT_WR))
child(lambda: print("child sees", e.poll(0.05), flush=True))
child(lambda: child(lambda: c.send(b"grandchild")))
child(lambda: c.close())
print("parent sees", e.poll(0.05), flush=True)
c.sendall(b"parent")
print("parent hears", e.poll(10) == [(c.fileno(), select.EPOLLIN)], c.recv(100), flush=True)
"""


def a_child_without_a_share_leaves_its_parents_connections_alone(faults):
    """fork needs a descriptor for the child's share; a program that has used all its own gets a child without one."""
    faults.port += 10
    server = faults.python(POOR, SERVER, faults.port, log="poor.log")
    said(server, "listening")
    peer = connects(faults)
    echoes(peer)
    assert peer.recv(6) == b"parent"
    peer.sendall(b"more")
    server.wait(30)
    told = [line for line in lines(server) if not line.startswith("knet:")]
    lost = "child errno 104"
    assert told == ["listening", lost, lost, lost, "child sees []", lost, "parent sees []", "parent hears True b'more'"], lines(server)
    assert sum("the child gets no share" in line for line in lines(server)) == 6, lines(server)
    peer.close()


REFUSED_CHILDREN = r"""
import os, select, socket, sys, time
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(64)
print("listening", flush=True)
c, _ = l.accept()
e = select.epoll()
e.register(c, select.EPOLLIN)
c.sendall(c.recv(100))
def child(act):
    pid = os.fork()
    if pid == 0:
        # Or its waits look for another host for it, which has no descriptor either.
        l.close()
        try:
            act()
        except OSError as error:
            print("child errno", error.errno, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
def sees():
    begin, work = time.monotonic(), time.process_time()
    found = e.poll(0.3)
    lasted, worked = time.monotonic() - begin, time.process_time() - work
    print("child sees", found, lasted >= 0.3 and worked < 0.1 or (lasted, worked), flush=True)
def falls_asleep():
    # The host finds out while it waits.
    print("child hears", select.select([c], [], [], 2)[0] == [c], flush=True)
    c.recv(1)
assert c.recv(100) == b"poor"
# Before the host has found out it may send, as any child.
child(lambda: (e.poll(0.3), c.send(b"child")))
child(sees)
child(falls_asleep)
for _ in range(260):
    child(lambda: None)
print("parent sees", e.poll(0.05), flush=True)
c.sendall(b"parent")
assert c.recv(100) == b"rich"
child(lambda: c.send(b"child"))
print("parent hears", e.poll(10) == [(c.fileno(), select.EPOLLIN)], c.recv(100), flush=True)
"""


def the_host_runs_out_of_descriptors_for_children(faults):
    """They get no share, their parent goes on, and once there are descriptors again the next child has one."""
    faults.no_host()
    faults.port += 10
    server = faults.python(REFUSED_CHILDREN, SERVER, faults.port, log="refused.log")
    said(server, "listening")
    peer = connects(faults)
    echoes(peer)
    host = faults.host()
    before = resource.prlimit(host, resource.RLIMIT_NOFILE)
    # What the host has open for a moment only does not count.
    taken = set(range(1024))
    for _ in range(20):
        taken &= {int(name) for name in os.listdir(f"/proc/{host}/fd")}
        time.sleep(0.05)
    lowest = next(number for number in range(len(taken) + 1) if number not in taken)
    resource.prlimit(host, resource.RLIMIT_NOFILE, (lowest, before[1]))
    peer.settimeout(60)
    peer.sendall(b"poor")
    assert peer.recv(6, socket.MSG_WAITALL) == b"parent"
    resource.prlimit(host, resource.RLIMIT_NOFILE, before)
    peer.sendall(b"rich")
    assert peer.recv(5, socket.MSG_WAITALL) == b"child"
    peer.sendall(b"more")
    server.wait(30)
    told = [line for line in lines(server) if not line.startswith("knet:")]
    lost = "child errno 104"
    assert told == [
        "listening", lost, "child sees [] True", "child hears True", lost, "parent sees []", "parent hears True b'more'",
    ], lines(server)
    assert not any("has gone" in line for line in lines(server)), lines(server)
    peer.close()


# As Debian's redis unit: no new privileges, no capabilities, another user, a filter of system calls.
CONFINED = r"""
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def prctl(*words):
    if libc.prctl(*words) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
for capability in range(64):
    if libc.prctl(24, capability, 0, 0, 0) != 0:
        break
uid = int(sys.argv[1])
refused = [int(number) for number in sys.argv[2].split(",") if number]
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
prctl(38, 1, 0, 0, 0)
# BPF: load the number; refuse what is listed with EPERM; allow the rest.
program = [(0x20, 0, 0, 0)]
for number in refused:
    program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
program += [(0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *step) for step in program)
text = ctypes.create_string_buffer(code)
class Fprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
prctl(22, 2, ctypes.byref(Fprog(len(program), ctypes.addressof(text))), 0, 0)
os.execvp(sys.argv[3], sys.argv[3:])
"""


# Not in @system-service: mount, ptrace, bpf, perf, module, swap, reboot, clock, raw-io, keyring (partly); and what only a
# host needs: memfd_create, mlock and its kin, setns, unshare, io_uring.
REFUSED = [
    101, 103, 155, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 174, 175, 176, 246, 272, 298, 304, 308,
    313, 320, 321, 323, 425, 426, 427,
]


def confined(faults, *command, refused=REFUSED, log, env=None, uid=65534):
    path = os.path.join(faults.lab.work, log)
    with contextlib.suppress(OSError):
        os.unlink(path)
    numbers = ",".join(map(str, refused))
    return faults.lab.start("server", "python3", "-c", CONFINED, str(uid), numbers, *command, log=log, env=env)


def a_confined_redis_stays_on_the_kernel_after_one_line(faults):
    """No privileges and a filter: no port can be opened; the line says to use the service."""
    faults.no_host()
    faults.port += 10
    config = os.path.join(faults.lab.work, "confined.conf")
    with open(f"{faults.lab.state}/server.conf", encoding="ascii") as file:
        text = file.read()
    with open(config, "w", encoding="ascii") as file:
        file.write(text)
    os.chmod(config, 0o644)
    os.chmod(faults.lab.work, 0o755)
    folder = os.path.join(faults.lab.work, "confined-run")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chown(folder, 65534, 65534)
    for refused in (REFUSED, REFUSED + [319]):
        confined_redis(faults, config, folder, refused)


def confined_redis(faults, config, folder, refused):
    faults.port += 10
    server = confined(
        faults, "env", f"KNET_CONF={config}", f"KNET_RUN_DIR={folder}", "redis-server", "--port", str(faults.port), "--bind",
        "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", folder, log="confined.log", refused=refused,
    )

    def answers():
        with contextlib.suppress(OSError):
            return faults.lab.connect(faults.port, address="127.0.0.1", end="s")
        return None

    peer = wait_for("Redis answers on the kernel", answers, 20)
    peer.sendall(b"PING\r\n")
    assert peer.recv(7) == b"+PONG\r\n"
    peer.close()
    told = [line for line in lines(server) if line.startswith("knet:")]
    faults.lab.end(server)
    assert len(told) == 1 and "service" in told[0] and "kernel sockets" in told[0], told


def a_confined_program_attaches_to_a_host_that_runs(faults):
    """The calls of the program side need no more than a service has."""
    faults.no_host()
    folder = os.path.join(faults.lab.work, "unix-run")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(faults.lab.work, 0o755)
    config = os.path.join(faults.lab.work, "unix.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write('{"interface": {"vdevs": ["knet_unix,path=%s/wire"], "ip": "%s"}, "proto_stack": {"msl_time": 1}}' % (folder, SERVER))
    os.chmod(config, 0o644)
    os.chown(folder, 65534, 65534)
    env = [f"KNET_CONF={config}", f"KNET_RUN_DIR={folder}", "KNET_LOG=" + os.path.join(folder, "log")]
    code = r"""
import socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], 7001)); l.listen(5)
print("listening", flush=True)
while True:
    c, _ = l.accept()
    while data := c.recv(100000): c.sendall(data)
"""
    talk = r"""
import os, select, socket, sys, threading
c = socket.create_connection((sys.argv[1], 7001), 10)
def read():
    global got
    got = 0
    while got < 3000000:
        part = c.recv(100000)
        if not part: break
        got += len(part)
t = threading.Thread(target=read); t.start()
c.sendall(b"x" * 3000000)
t.join()
e = select.epoll(); e.register(c, select.EPOLLIN)
pid = os.fork()
if pid == 0:
    c.sendall(b"from the child"); os._exit(0)
os.waitpid(pid, 0)
assert e.poll(5)
print("got", got, c.recv(100).decode(), flush=True)
"""
    first = confined(faults, "env", *env, "python3", "-u", "-c", code, SERVER, refused=[], log="first.log")
    said(first, "listening")
    second = confined(faults, "env", *env, "python3", "-u", "-c", talk, SERVER, log="second.log")
    second.wait(30)
    faults.lab.end(first)
    assert lines(second) == ["got 3000000 from the child"], lines(second)


@contextlib.contextmanager
def memory_group(name):
    """A control group with a memory controller: its folder, and the file that limits it. None when there is no such thing."""
    folder = limit = None
    for parent, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        with contextlib.suppress(OSError):
            os.mkdir(os.path.join(parent, name))
            if os.path.exists(os.path.join(parent, name, file)):
                folder, limit = os.path.join(parent, name), os.path.join(parent, name, file)
                break
            os.rmdir(os.path.join(parent, name))
    try:
        yield (folder, limit) if folder else None
    finally:
        if folder:
            def gone():
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                return not os.path.exists(folder)

            wait_for("the group is empty", gone, 20)


HOARDS = r"""
import socket, sys
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(500)
print("listening", flush=True)
kept = []
while True:
    c, _ = l.accept()
    kept.append(c)
    if len(kept) == 1:
        c.sendall(b"first")
"""


def a_full_memory_cgroup_harms_the_host_at_most(faults):
    """Connections that nobody reads fill the group: the kernel ends somebody in it, and that is not the program."""
    faults.no_host()
    with memory_group(f"knet-{os.getpid()}") as group:
        if group is None:
            return "no memory controller of control groups can be used here"
        folder, limit = group
        faults.port += 10
        # The groups are not to be seen in a network namespace of ip(8): it waits to be put there.
        go = os.path.join(faults.lab.work, "go")
        waits = ("sh", "-c", f'while [ ! -e {go} ]; do sleep 0.02; done; exec "$@"', "waits")
        server = faults.python(HOARDS, SERVER, faults.port, log="hoards.log", prefix=waits)
        try:
            pid = wait_for("it waits", lambda: faults.pids("sh"))[0]
            with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(pid))
            with open(go, "w", encoding="ascii"):
                pass
            said(server, "listening")
            peer = connects(faults)
            assert peer.recv(5) == b"first"
            old = faults.host()
            with open(limit.replace("limit_in_bytes", "usage_in_bytes").replace("memory.max", "memory.current"), encoding="ascii") as file:
                used = int(file.read())
            with open(limit, "w", encoding="ascii") as file:
                file.write(str(used + (8 << 20)))
            peers = []
            try:
                for _ in range(200):
                    peers.append(faults.lab.connect(faults.port, 1))
                    peers[-1].setblocking(False)
                    peers[-1].send(bytes(250_000))
            except OSError:
                # The host was ended.
                pass
            for other in [peer, *peers]:
                other.close()
            time.sleep(1)
            assert server.poll() is None, (server.returncode, lines(server))
            with open(limit, "w", encoding="ascii") as file:
                file.write(str(used + (512 << 20)))
            connects(faults).close()
            told = [line for line in lines(server) if line.startswith("knet:")]
            if faults.host() != old:
                assert any("has gone" in line for line in told) and any("listened on again" in line for line in told), told
        finally:
            faults.lab.end(server)
            faults.no_host()
    return None


CASES = [
    no_number_left_in_the_middle_of_accept, a_thousand_connections_under_a_soft_limit_of_1024,
    a_program_that_lowers_its_limit_and_closes_what_it_sees, limits_of_the_program_do_not_bind_the_host,
    a_confined_redis_stays_on_the_kernel_after_one_line,
    a_confined_program_attaches_to_a_host_that_runs, a_hard_limit_on_file_size_is_one_line,
    a_full_memory_cgroup_harms_the_host_at_most, a_child_without_a_share_leaves_its_parents_connections_alone,
    the_host_runs_out_of_descriptors_for_children,
]

if __name__ == "__main__":
    main_of("faults_limits", CASES)
