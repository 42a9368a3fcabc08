#!/usr/bin/env python3
"""LD_PRELOAD in front of programs that must not notice: same exit status, stdout and stderr as without. No privilege."""

import os
import re
import shutil
import subprocess
import sys

from folder import work_folder
from harness import ROOT, main

LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")

FORKS = "import os; p = os.fork(); os._exit(0) if p == 0 else print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))"
NUMBERS = "import os; print(os.open('/etc/hosts', 0), os.dup(0), os.pipe())"
POPENS = "import os; print(sum(os.popen('echo a').read() == 'a\\n' for _ in range(100)))"
THREADS = (
    "import threading; out = []; all = [threading.Thread(target=out.append, args=(n,)) for n in range(50)];"
    "[t.start() for t in all]; [t.join() for t in all]; print(sum(out))"
)
# Sockets that are no business of the stack's: not one word, no host.
LOOPBACK = (
    "import socket; l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname());"
    "a, _ = l.accept(); a.sendall(b'hello'); print(c.recv(5)); p, q = socket.socketpair(); p.send(b'x'); print(q.recv(1));"
    "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); u.sendto(b'y', u.getsockname());"
    "print(u.recv(1)); print(len(socket.getaddrinfo('127.0.0.1', 80)))"
)
# An undecided socket is the kernel's.
UNDECIDED = "import socket; s = socket.socket(); print(s.fileno() < 1024, s.getsockname(), s.getsockopt(1, 3)); s.close()"
EPOLL = (
    "import os, select; e = select.epoll(); r, w = os.pipe(); e.register(r, select.EPOLLIN); print(e.poll(0));"
    "os.write(w, b'x'); print(len(e.poll(5))); print(len(select.select([r], [], [], 5)[0]))"
)
TITLE = "import os; print(b'PATH=' in open('/proc/self/environ', 'rb').read(), os.environ['PATH'] != '')"


def library(name):
    for folder in LIBRARIES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    return None


class Context:
    def __init__(self):
        self.processes = []
        self.folder = work_folder("preload")
        self.run_dir = os.path.join(self.folder, "run")
        os.mkdir(self.run_dir, 0o700)
        kinds = (os.environ.get("KNET_BUILD", "release"), "debug")
        found = [os.path.join(ROOT, "target", kind, "libknet_frame.so") for kind in kinds]
        found = [path for path in found if os.path.exists(path)]
        assert found, "libknet_frame.so is not built: cargo build --release --workspace"
        self.frame = found[0]

    def run(self, words, preload):
        env = {key: value for key, value in os.environ.items() if not key.startswith(("KNET_", "LD_"))}
        # No such config: whoever opens it too early says so.
        env.update(KNET_CONF=os.path.join(self.folder, "none.conf"), KNET_RUN_DIR=self.run_dir, LC_ALL="C")
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        done = subprocess.run(
            words, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", timeout=120,
        )
        return done.returncode, plain(done.stdout), plain(done.stderr)

    def same(self, words, others=(), first=True):
        """The same with the frame before (or behind) the other preloaded libraries as with those alone."""
        preload = [self.frame, *others] if first else [*others, self.frame]
        expected, got = self.run(words, others), self.run(words, preload)
        for what, a, b in zip(("exit status", "stdout", "stderr"), expected, got):
            assert a == b, f"{what} {difference(b, a)}, not {difference(a, b)}"
        return got

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def difference(text, other):
    """What is in one output and not in the other, cut."""
    if not isinstance(text, str):
        return text
    return repr("".join(line for line in text.splitlines(True) if line not in other.splitlines(True))[:300])


def plain(text):
    """Without what differs from run to run: process numbers, addresses, and the preload itself as `env` shows it."""
    text = re.sub(r"\b(process|LWP|pid) \d+", r"\1 N", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0xN", text)
    return "".join(line for line in text.splitlines(True) if not line.startswith("LD_PRELOAD="))


def case(name, words, output=None, status=0):
    """A command; `output` guards against comparing two equal failures."""

    def run(context):
        if not shutil.which(words[0]):
            return f"{words[0]} is not installed"
        got = context.same(words)
        assert got[0] == status, f"exit status {got[0]}, not {status}: {got[2]}"
        assert output is None or output in got[1], got[1]

    run.__name__ = name
    return run


def beside(allocator, words, output):
    """The frame before and behind an allocator."""

    def run(context):
        if not shutil.which(words[0]):
            return f"{words[0]} is not installed"
        path = library(f"lib{allocator}")
        if not path:
            return f"lib{allocator} is not installed"
        for first in (True, False):
            got = context.same(words, (path,), first)
            assert got[0] == 0 and output in got[1], got

    run.__name__ = f"{re.sub('[^a-z]+.*', '', allocator)}_{os.path.basename(words[0]).replace('-', '_')}"
    return run


def the_library_is_really_there(context):
    code = "print('libknet_frame.so' in open('/proc/self/maps').read())"
    assert context.run([sys.executable, "-c", code], [context.frame])[1] == "True\n"
    assert context.run([sys.executable, "-c", code], [])[1] == "False\n"


def nothing_is_undefined(context):
    out = subprocess.run(["ldd", "-r", context.frame], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    assert "undefined symbol" not in out and "not found" not in out, out


def no_dpdk_is_linked(context):
    out = subprocess.run(["ldd", context.frame], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "librte_" not in out, out


def environ_stays_where_it_was(context):
    """A constructor that calls setenv moves environ, and programs that write their title into it crash."""
    source, program = os.path.join(context.folder, "environ.c"), os.path.join(context.folder, "environ")
    with open(source, "w", encoding="ascii") as file:
        file.write(
            "#include <stdio.h>\n#include <unistd.h>\n"
            "int main(int count, char **words, char **given) {"
            " puts(environ == given && environ == words + count + 1 ? \"same\" : \"moved\"); }\n"
        )
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-O2", "-o", program, source], check=True)
    assert context.same([program])[1] == "same\n"


def ping_keeps_its_status(context):
    """Perhaps with file capabilities: then the loader drops us, by rule. Times differ, so only the status counts."""
    if not shutil.which("ping"):
        return "ping is not installed"
    words = ["ping", "-c1", "-W2", "127.0.0.1"]
    assert context.run(words, [context.frame])[0] == context.run(words, [])[0]


def nothing_was_started(context):
    """After all of this: no host, no socket, no file in the run folder (nothing happens until it must)."""
    assert os.listdir(context.run_dir) == [], os.listdir(context.run_dir)


PYTHON = sys.executable
CASES = [
    the_library_is_really_there, nothing_is_undefined, no_dpdk_is_linked, environ_stays_where_it_was,
    case("true", ["true"]),
    case("false", ["false"], status=1),
    case("env", ["env"], "PATH="),
    case("ls", ["ls", "/etc/hosts"], "hosts"),
    case("no_such_program", ["env", "/no/such/program"], status=127),
    case("sh", ["sh", "-c", "echo out; echo err >&2; exit 3"], "out", 3),
    case("sh_killed", ["sh", "-c", "kill -9 $$"], status=-9),
    case("bash", ["bash", "-c", "for n in 1 2 3; do echo $n | cat; done; x=$(echo sub); echo $x"], "sub"),
    case("bash_descriptor_3", ["bash", "-c", "exec 3</etc/hosts; readlink /proc/self/fd/3; ls /proc/$$/fd"], "/etc/hosts"),
    case("bash_closes_all", ["bash", "-c", "exec 0<&- 2>&-; echo still"], "still"),
    case("ksh", ["ksh", "-c", "true"]),
    case("taskset", ["taskset", "-c", "0", "echo", "there"], "there"),
    case("timeout", ["timeout", "5", "sh", "-c", "exit 7"], status=7),
    case("nice_and_setsid", ["nice", "setsid", "-w", "echo", "there"], "there"),
    case("git", ["git", "--version"], "git version"),
    case("redis_server_version", ["redis-server", "--version"], "Redis server"),
    case("redis_cli_version", ["redis-cli", "--version"], "redis-cli"),
    case("nginx_version", ["nginx", "-v"]),
    case("python", [PYTHON, "-c", "print(sum(range(1000)))"], "499500"),
    case("python_exception", [PYTHON, "-c", "raise SystemExit('word')"], status=1),
    case("python_forks", [PYTHON, "-c", FORKS], "0"),
    case("python_descriptor_numbers", [PYTHON, "-c", NUMBERS], "3"),
    case("python_threads", [PYTHON, "-c", THREADS], "1225"),
    case("python_100_popens", [PYTHON, "-c", POPENS], "100"),
    case("python_environ", [PYTHON, "-c", TITLE], "True True"),
    case("python_loopback_sockets", [PYTHON, "-c", LOOPBACK], "hello"),
    case("python_undecided_socket", [PYTHON, "-c", UNDECIDED], "True ('0.0.0.0', 0) 1"),
    case("python_epoll_of_pipes", [PYTHON, "-c", EPOLL], "1"),
    case("gdb", ["gdb", "-nx", "-batch", "-ex", "run", "--args", "/bin/sh", "-c", "echo inside; exit 6"], "inside"),
    case("gdb_break", ["gdb", "-nx", "-batch", "-ex", "break main", "-ex", "run", "-ex", "continue", "--args", PYTHON, "-c", "print('inside')"], "inside"),
    case("strace", ["strace", "-f", "-qq", "-e", "trace=none", "-e", "signal=none", "sh", "-c", "echo a | cat; exit 4"], "a", 4),
    beside("jemalloc.so.2", ["redis-server", "--version"], "Redis server"),
    beside("jemalloc.so.2", [PYTHON, "-c", POPENS], "100"),
    beside("jemalloc.so.2", ["bash", "-c", "echo a | cat"], "a"),
    beside("tcmalloc_minimal.so.4", ["redis-server", "--version"], "Redis server"),
    beside("tcmalloc_minimal.so.4", [PYTHON, "-c", THREADS], "1225"),
    beside("tcmalloc_minimal.so.4", ["bash", "-c", "echo a | cat"], "a"),
    ping_keeps_its_status,
    nothing_was_started,
]

if __name__ == "__main__":
    main("preload", CASES, Context, Context.close)
