#!/usr/bin/env python3
"""Programs that are stopped or killed, and that do odd things with what they have open. Needs root."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time

from faults_parts import connects, echoes, lines, main_of, said
from harness import SERVER, wait_for


def a_stopped_program_loses_nothing(faults):
    server = faults.echo()
    peer = connects(faults)
    program = faults.pids("python3")[0]
    os.kill(program, signal.SIGSTOP)
    try:
        peer.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 50_000_000:
                sent += peer.send(b"y" * 65536)
        # The stack goes on without it: a new connection is made, and answered.
        other = faults.lab.connect(faults.port)
        time.sleep(1)
    finally:
        os.kill(program, signal.SIGCONT)
    peer.settimeout(20)
    got = 0
    while got < sent:
        part = peer.recv(1 << 20)
        assert part
        got += len(part)
    echoes(other)
    other.close()
    peer.close()
    faults.lab.end(server)


def a_killed_program_ends_its_connections_as_linux_does(faults):
    server = faults.echo()
    quiet, unread = connects(faults), connects(faults)
    echoes(quiet)
    host = faults.host()
    program = faults.pids("python3")[0]
    os.kill(program, signal.SIGSTOP)
    unread.sendall(b"never read")
    time.sleep(0.2)
    os.kill(program, signal.SIGKILL)
    assert quiet.recv(1) == b"", "a FIN where everything was read"
    try:
        unread.recv(1)
        raise AssertionError("a reset where something was unread")
    except ConnectionResetError:
        pass
    with contextlib.suppress(OSError):
        faults.lab.connect(faults.port)
        raise AssertionError("the port is closed")
    server.wait(10)
    # The port is free at once, and the lingering host is taken over.
    begin = time.monotonic()
    server = faults.echo_again()
    assert faults.host() == host
    peer = faults.lab.connect(faults.port)
    echoes(peer)
    assert time.monotonic() - begin < 5
    peer.close()
    faults.lab.end(server)


def odd(faults, code, log="odd.log", answer=b"fine", **options):
    """Runs a program that listens, takes one connection, does something odd, and says how it was."""
    faults.port += 10
    server = faults.python(ODD + code, SERVER, faults.port, log=log, **options)
    said(server, "listening")
    peer = connects(faults)
    return server, peer


ODD = r"""
import ctypes, errno, os, select, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(600)
def say(*words): os.write(1, (" ".join(map(str, words)) + "\n").encode())
say("listening")
c, _ = l.accept()
def echo(c):
    while data := c.recv(65536): c.sendall(data)
"""


def raw_close_range_takes_our_descriptors_and_nothing_hangs(faults):
    """By a raw system call even the plumbing is closed: the connections may be lost, the program not."""
    code = r"""
keep = c.fileno()
assert libc.syscall(436, max(keep, l.fileno()) + 1, 1 << 20, 0) == 0
say("closed")
try:
    echo(c)
except OSError as error:
    say("lost", error.errno)
# The numbers are reused by something else, which is not written to.
r, w = os.pipe()
many = [os.dup(r) for _ in range(900)]
c.close()
try:
    d, _ = l.accept()
    echo(d)
except OSError as error:
    say("accept", error.errno)
os.set_blocking(r, False)
try:
    say("pipe", len(os.read(r, 100)))
except BlockingIOError:
    say("pipe untouched")
"""
    server, peer = odd(faults, code)
    said(server, "closed")
    with contextlib.suppress(OSError):
        peer.sendall(b"hello")
        peer.recv(5)
    peer.close()
    with contextlib.suppress(OSError):
        other = faults.lab.connect(faults.port, 3)
        with contextlib.suppress(OSError):
            echoes(other)
        other.close()
    server.wait(15)
    assert server.returncode == 0 and "pipe untouched" in lines(server), lines(server)


def closefrom_steps_over_our_descriptors(faults):
    code = r"""
libc.closefrom(max(c.fileno(), l.fileno()) + 1)
say("closed")
echo(c)
c.close()
d, _ = l.accept()
echo(d)
say("fine")
"""
    server, peer = odd(faults, code)
    said(server, "closed")
    echoes(peer)
    peer.close()
    other = connects(faults)
    echoes(other)
    other.close()
    said(server, "fine")


def a_fork_in_a_thread_while_another_receives(faults):
    code = r"""
t = threading.Thread(target=echo, args=(c,))
t.start()
def forks():
    for _ in range(100):
        pid = os.fork()
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
f = threading.Thread(target=forks)
f.start(); f.join()
say("forked")
t.join()
say("fine")
"""
    server, peer = odd(faults, code)
    n = 0
    while "forked" not in lines(server):
        echoes(peer, b"number %d" % n)
        n += 1
    peer.close()
    said(server, "fine")
    assert n > 10


def bad_pointers_are_efault(faults):
    code = r"""
class Iov(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
fd, lfd = c.fileno(), l.fileno()
one = ctypes.c_uint(16)
def call(name, *words):
    ctypes.set_errno(0)
    function = getattr(libc, name)
    function.restype = ctypes.c_ssize_t
    result = function(*words)
    return errno.errorcode.get(ctypes.get_errno(), 0) if result & 0xffffffff == 0xffffffff else result
tests = [
    ("connect", fd, None, 16), ("bind", fd, None, 16), ("getsockname", fd, None, None), ("getpeername", fd, None, None),
    ("getsockname", fd, None, ctypes.byref(one)), ("accept", lfd, None, None),
    ("sendmsg", fd, None, 0), ("recvmsg", fd, None, 0), ("setsockopt", fd, 1, 9, None, 4), ("getsockopt", fd, 1, 9, None, None),
    ("setsockopt", fd, 6, 1, None, 4), ("epoll_ctl", 5555, 1, fd, None), ("poll", None, 1, 0), ("ioctl", fd, 0x541B, None),
    ("epoll_wait", EP, None, 0, 0), ("recv", fd, None, 1, 0x40), ("send", fd, None, 5, 0x40),
    ("readv", fd, None, 1), ("writev", fd, None, 1), ]
"""
    code = code.replace("tests = [", "EP = libc.epoll_create1(0)\nlibc.fcntl(lfd, 4, 0o4000)\ntests = [") + r"""
assert select.select([c], [], [], 10)[0]
for test in tests:
    say(test[0], *call(*test[:]).__repr__().split())
c.setblocking(True)
echo(c)
say("fine")
"""
    server, peer = odd(faults, code)
    peer.sendall(b"waiting")
    time.sleep(0.2)
    echoes_some = peer.recv(100)
    assert echoes_some in (b"waiting",), echoes_some
    peer.close()
    said(server, "fine")
    out = lines(server)
    # The same on a kernel listener and a kernel connection.
    kernel = subprocess.run(
        ["python3", "-c", (ODD + code).replace("l.bind((sys.argv[1], int(sys.argv[2])))", "l.bind(('127.0.0.1', 0))").replace(
            "c, _ = l.accept()",
            "p = socket.create_connection(l.getsockname()); p.send(b'waiting'); c, _ = l.accept(); p.shutdown(1)", 1)],
        stdout=subprocess.PIPE, text=True, timeout=20, check=True,
    ).stdout.splitlines()
    assert out == kernel, [pair for pair in zip(out, kernel) if pair[0] != pair[1]]


def exec_with_open_connections(faults):
    """Inherited by exec, an accelerated connection goes on in the new program, which may write and then end it."""
    code = r"""
c.set_inheritable(True)
say("executes")
os.execvp("python3", ["python3", "-c", "import os,sys\ntry:\n  n = os.write(%d, b'x')\n  print('wrote', n, flush=True)\n"
    "except OSError as error:\n  print('errno', error.errno, flush=True)\nimport time; time.sleep(1)" % c.fileno()])
"""
    server, peer = odd(faults, code)
    said(server, "executes")
    peer.settimeout(20)
    assert peer.recv(10) == b"x", "what the new program writes"
    assert peer.recv(10) == b"", "its end"
    server.wait(20)
    out = lines(server)
    assert "wrote 1" in out, out


def other_user_and_root_after_bind(faults):
    code = r"""
os.mkdir("jail") if not os.path.exists("jail") else None
os.chroot("jail"); os.chdir("/")
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
t = threading.Thread(target=echo, args=(c,)); t.start()
d, _ = l.accept()
echo(d)
t.join()
m = socket.socket()
try:
    m.bind((sys.argv[1], int(sys.argv[2]) + 1)); m.listen(5)
    say("another")
except OSError as error:
    say("errno", error.errno)
"""
    server, peer = odd(faults, code)
    echoes(peer)
    other = connects(faults)
    echoes(other)
    other.close()
    peer.close()
    server.wait(10)
    assert "another" in lines(server), lines(server)


def daemon_after_listen(faults):
    code = r"""
libc.daemon(1, 1)
t = threading.Thread(target=echo, args=(c,)); t.start()
d, _ = l.accept()
echo(d)
t.join()
say("fine")
"""
    server, peer = odd(faults, code)
    echoes(peer)
    other = connects(faults)
    echoes(other)
    other.close()
    peer.close()
    # The one that was started has ended: the daemon goes on.
    wait_for("the daemon is fine", lambda: "fine" in lines(server))


def duplicates_above_700(faults):
    code = r"""
made = []
refused = 0
for number in list(range(690, 760)) + [1000, 1023]:
    try:
        assert os.dup2(c.fileno(), number) == number, number
        made.append(number)
    except OSError as error:
        # One of ours: said so, and not harmed.
        assert error.errno == errno.EBUSY and number >= 700, error
        refused += 1
assert refused < 16, refused
c.close()
for number in made[:3] + made[-4:]:
    d = socket.socket(fileno=number)
    data = d.recv(5, socket.MSG_WAITALL)
    d.sendall(data)
    d.close()
e, _ = l.accept()
echo(e)
for number in range(690, 760):
    try: os.close(number)
    except OSError: pass
for number in (1000, 1023):
    try: os.close(number)
    except OSError: pass
say("fine")
"""
    server, peer = odd(faults, code)
    for _ in range(7):
        echoes(peer)
    other = connects(faults)
    echoes(other)
    other.close()
    said(server, "fine")
    peer.settimeout(5)
    assert peer.recv(1) == b"", "the last duplicate was closed"
    peer.close()


SPAWNS = r"""
import select, socket, subprocess, sys, threading
first = select.epoll()
# By vfork: what the child does before it executes happens in this thread's memory.
subprocess.run(["true"], close_fds=True, stdin=subprocess.DEVNULL)
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(16)
print("listening", flush=True)
def client():
    c = socket.create_connection(l.getsockname())
    c.sendall(b"hello")
    assert c.recv(10) == b"hello"
# Each time another thread sleeps for the first time while this one does.
for _ in range(300):
    thread = threading.Thread(target=client)
    thread.start()
    c, _ = l.accept()
    c.sendall(c.recv(10))
    thread.join()
    c.close()
print("done", flush=True)
"""


def a_thread_that_has_made_a_child_is_woken_for_itself(faults):
    """A child of vfork leaves no trace in the thread that made it: its place to sleep would be given to another one."""
    faults.port += 10
    server = faults.python(SPAWNS, SERVER, faults.port, log="spawns.log")
    said(server, "done", 30)
    faults.lab.end(server)


def three_hundred_threads_in_recv_at_once(faults):
    code = r"""
threading.stack_size(256 * 1024)
threads = []
for _ in range(300):
    d, _ = l.accept()
    t = threading.Thread(target=echo, args=(d,)); t.start(); threads.append(t)
say("all")
for t in threads: t.join()
echo(c)
say("fine")
"""
    server, peer = odd(faults, code)
    peers = [faults.lab.connect(faults.port) for _ in range(300)]
    said(server, "all")
    for turn in range(3):
        for n, other in enumerate(peers):
            other.sendall(b"%04d%d" % (n, turn))
        for n, other in enumerate(peers):
            assert other.recv(5, socket.MSG_WAITALL) == b"%04d%d" % (n, turn)
        time.sleep(0.3)
    for other in peers:
        other.close()
    echoes(peer)
    peer.close()
    said(server, "fine")


def twenty_thousand_short_connections_leave_nothing_behind(faults):
    server = faults.echo()
    program = faults.pids("python3")[0]

    def facts():
        host = faults.host()
        out = []
        for pid in (program, host):
            with open(f"/proc/{pid}/status", encoding="ascii") as status:
                rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
            out += [rss, len(os.listdir(f"/proc/{pid}/fd"))]
        return out

    def burst(count):
        linger = struct.pack("ii", 1, 0)
        with faults.lab.inside("c"):
            for n in range(count):
                peer = socket.socket()
                if n % 2:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                peer.settimeout(20)
                peer.connect((SERVER, faults.port))
                peer.sendall(b"hello")
                assert peer.recv(5) == b"hello"
                peer.close()

    burst(4000)
    first = facts()
    burst(16_000)
    # TIME-WAIT is over after 2 x msl_time.
    time.sleep(3)
    last = facts()
    print("program KiB, descriptors, host KiB, descriptors:", first, last, flush=True)
    assert last[0] - first[0] < 2048 and last[2] - first[2] < 4096, (first, last)
    assert last[1] <= first[1] and last[3] <= first[3], (first, last)
    stats = faults.lab.stats()
    begun = stats.get("syns_received", 0) + stats.get("flows_connecting", 0)
    assert begun - stats["flows_freed"] <= 1, stats
    faults.lab.end(server)


CASES = [
    a_stopped_program_loses_nothing, a_killed_program_ends_its_connections_as_linux_does,
    raw_close_range_takes_our_descriptors_and_nothing_hangs, closefrom_steps_over_our_descriptors,
    a_fork_in_a_thread_while_another_receives, bad_pointers_are_efault, exec_with_open_connections,
    other_user_and_root_after_bind, daemon_after_listen, duplicates_above_700,
    a_thread_that_has_made_a_child_is_woken_for_itself, three_hundred_threads_in_recv_at_once,
    twenty_thousand_short_connections_leave_nothing_behind,
]

if __name__ == "__main__":
    main_of("faults_programs", CASES)
