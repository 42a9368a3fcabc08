#!/usr/bin/env python3
"""Bad input: one clear line on stderr, then kernel sockets; with on_error "fail", a refusal. Needs no privilege."""

import os
import re
import shutil
import subprocess
import sys

from folder import work_folder
from harness import ROOT, main

GOOD = '{"interface": {"vdevs": ["knet_unix,path=WIRE"], "ip": "10.77.0.1", "netmask": "255.255.255.0"}}'

# A server on the wildcard address that talks to itself over loopback: the kernel can serve it in any case.
ECHO = r"""
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", 0))
s.listen(5)
c = socket.create_connection(("127.0.0.1", s.getsockname()[1]), 5)
a, _ = s.accept()
a.sendall(b"hello")
print(c.recv(5).decode())
"""

# A server on an address that only the stack has.
OURS = r"""
import socket, sys
s = socket.socket()
try:
    s.bind(("10.77.0.1", 7999))
    s.listen(5)
    print("listening")
except OSError as error:
    print("errno", error.errno)
"""


class Context:
    def __init__(self):
        self.processes = []
        self.folder = work_folder("bad")
        build = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"))
        if not os.path.exists(os.path.join(build, "libknet_frame.so")):
            build = os.path.join(ROOT, "target", "debug")
        self.build = build

    def run(self, code, config, *, env=None, run_dir="run", prefix=(), seconds=30):
        path = os.path.join(self.folder, "knet.conf")
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)
        if callable(config):
            config(path)
        elif config is not None:
            with open(path, "wb") as file:
                data = config if isinstance(config, bytes) else config.encode()
                file.write(data.replace(b"WIRE", os.path.join(self.folder, "wire").encode()))
        run_dir = os.path.join(self.folder, run_dir)
        os.makedirs(run_dir, mode=0o700, exist_ok=True)
        full = {
            **os.environ, "KNET_CONF": path, "KNET_RUN_DIR": run_dir,
            "LD_PRELOAD": os.path.join(self.build, "libknet_frame.so"), **(env or {}),
        }
        result = subprocess.run(
            [*prefix, sys.executable, "-c", code], env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, timeout=seconds,
        )
        result.lines = [line for line in result.stderr.splitlines() if line.startswith("knet:")]
        result.other = [line for line in result.stderr.splitlines() if not line.startswith("knet:")]
        return result


def kernel_serves_after_one_line(context, config, words, **options):
    result = context.run(ECHO, config, **options)
    assert result.stdout == "hello\n", (result.stdout, result.stderr)
    assert result.returncode == 0, result.returncode
    text = "\n".join(result.lines)
    assert len(result.lines) == 1, f"one line expected: {result.stderr!r}"
    for word in words if isinstance(words, (list, tuple)) else [words]:
        assert re.search(word, text), f"{word!r} is not in {text!r}"
    assert not result.other, result.other


def case(name, config, words, **options):
    def run(context):
        kernel_serves_after_one_line(context, config, words, **options)

    run.__name__ = name
    return run


def a_good_config_says_nothing(context):
    result = context.run(OURS, GOOD)
    assert (result.stdout, result.stderr) == ("listening\n", ""), (result.stdout, result.stderr)


def on_error_fail_refuses(context):
    broken = GOOD.replace('"ip"', '"ipp"').replace("{", '{"common": {"on_error": "fail"}, ', 1)
    result = context.run(ECHO, broken)
    assert result.returncode != 0 and result.stdout == "", (result.stdout, result.stderr)
    assert any("ipp" in line for line in result.lines), result.stderr


# What would be routed, on sockets made before and after the refusal; loopback is the kernel's in any case.
REFUSALS = r"""
import errno, socket
early = socket.socket()
def told(name, call):
    try:
        print(name, call() or 0)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
told("listen", lambda: socket.socket().listen(5))
told("bind any", lambda: socket.socket().bind(("0.0.0.0", 0)))
told("bind ours", lambda: socket.socket().bind(("10.77.0.1", 7999)))
told("early", lambda: early.bind(("0.0.0.0", 0)))
late = socket.socket()
late.setblocking(False)
told("connect", lambda: late.connect(("10.77.0.2", 9)))
told("loopback", lambda: socket.socket().bind(("127.0.0.1", 0)))
"""


def on_error_fail_refuses_every_routed_call(context):
    broken = GOOD.replace('"ip"', '"ipp"').replace("{", '{"common": {"on_error": "fail"}, ', 1)
    result = context.run(REFUSALS, broken)
    words = [line.rsplit(" ", 1)[1] for line in result.stdout.splitlines()]
    assert words == ["EADDRNOTAVAIL"] * 5 + ["0"], (result.stdout, result.stderr)
    assert len(result.lines) == 1 and "refused" in result.lines[0], result.stderr


def our_address_is_not_available_once_a_fault_is_known(context):
    result = context.run(OURS, GOOD.replace('"vdevs"', '"vdevss"'))
    assert result.stdout == "errno 99\n", (result.stdout, result.stderr)
    assert len(result.lines) == 1 and "vdevs" in result.lines[0], result.stderr


# A server that goes to its own folder and clears its environment before it listens.
MOVES = r"""
import ctypes, os
os.chdir("/")
ctypes.CDLL(None).clearenv()
""" + OURS


def a_relative_config_is_that_of_the_start(context):
    path = os.path.relpath(os.path.join(context.folder, "knet.conf"))
    result = context.run(MOVES, GOOD, env={"KNET_CONF": path, "KNET_RUN_DIR": os.path.relpath(os.path.join(context.folder, "run"))})
    assert (result.stdout, result.stderr) == ("listening\n", ""), (result.stdout, result.stderr)


def a_program_without_sockets_reads_no_config(context):
    result = context.run("print('fine')", "nonsense")
    assert (result.stdout, result.stderr) == ("fine\n", "")


def loopback_reads_no_config(context):
    result = context.run(ECHO.replace('"0.0.0.0"', '"127.0.0.1"'), "nonsense")
    assert (result.stdout, result.stderr) == ("hello\n", ""), (result.stdout, result.stderr)


def make_folder(path):
    os.mkdir(path)


def without_host(context):
    """No host binary: the library alone in a folder, and none in /usr/bin."""
    if os.path.exists("/usr/bin/knetd"):
        return "knetd is installed in /usr/bin"
    alone = os.path.join(context.folder, "alone")
    os.makedirs(alone, exist_ok=True)
    shutil.copy(os.path.join(context.build, "libknet_frame.so"), alone)
    kernel_serves_after_one_line(
        context, GOOD, "knetd", run_dir="alone-run",  # none that lingers is found there
        env={"LD_PRELOAD": os.path.join(alone, "libknet_frame.so")},
    )
    return None


def no_such_bdf(context):
    kernel = GOOD.replace('"vdevs": ["knet_unix,path=WIRE"]', '"bdf_nums": ["0000:fe:1f.7"]')
    result = context.run(OURS, kernel)
    assert "errno 99" in result.stdout or "listening" not in result.stdout, (result.stdout, result.stderr)
    assert any("0000:fe:1f.7" in line for line in result.lines), result.stderr


def no_such_interface(context):
    kernel = GOOD.replace('"vdevs": ["knet_unix,path=WIRE"]', '"netdev": "nosuch0"')
    result = context.run(OURS, kernel)
    assert "listening" not in result.stdout, (result.stdout, result.stderr)
    assert any("nosuch0" in line for line in result.lines), result.stderr


def a_full_dev_shm_changes_nothing(context):
    if os.getuid() != 0:
        return "needs root to mount a full /dev/shm"
    full = 'mount -t tmpfs -o size=4k none /dev/shm && head -c 64k /dev/zero >/dev/shm/full 2>/dev/null; exec "$@"'
    result = context.run(OURS, GOOD, run_dir="full-run", prefix=("unshare", "-m", "sh", "-c", full, "sh"))
    assert (result.stdout, result.stderr) == ("listening\n", ""), (result.stdout, result.stderr)
    return None


def ulimit_n_256(context):
    result = context.run(OURS, GOOD, prefix=("bash", "-c", 'ulimit -n 256; exec "$@"', "limit"))
    assert result.stdout == "listening\n", (result.stdout, result.stderr)


def rlimit_fsize_0(context):
    result = context.run(OURS, GOOD, prefix=("bash", "-c", 'ulimit -f 0; exec "$@"', "limit"))
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert result.stdout == "listening\n" or result.lines, (result.stdout, result.stderr)


def address_space(how):
    return ("bash", "-c", f'ulimit {how} 1000000; exec "$@"', "limit")


def rlimit_as_leaves_the_program_on_the_kernel(context):
    """A soft limit stops only the program, a hard one the host as well, unless it may raise it."""
    for how, words in (("-Sv", "address space of this process.* MiB too few"), ("-v", "address space is|too few")):
        kernel_serves_after_one_line(context, GOOD, words, prefix=address_space(how))


def rlimit_as_refuses_where_the_config_says_so(context):
    config = GOOD.replace("{", '{"common": {"on_error": "fail"}, ', 1)
    for how in ("-Sv", "-v"):
        result = context.run(ECHO, config, prefix=address_space(how))
        assert result.returncode != 0 and result.stdout == "", (result.stdout, result.stderr)
        assert len(result.lines) == 1 and re.search("address space.*refused", result.lines[0]), result.stderr


CASES = [
    a_good_config_says_nothing,
    a_relative_config_is_that_of_the_start,
    a_program_without_sockets_reads_no_config,
    loopback_reads_no_config,
    case("config_missing", None, ["knet.conf", "[Nn]o such file|not found"]),
    case("config_is_a_directory", make_folder, ["knet.conf", "directory"]),
    case("config_empty", "", ["knet.conf", "empty"]),
    case("config_of_1_mb", b" " * (1 << 20), ["knet.conf", "large|limit|bytes"]),
    case("config_with_nul", b'{"interface": \0}', ["knet.conf", "NUL|zero byte"]),
    case("config_truncated", '{"interface": {', ["knet.conf"]),
    case("unknown_key_names_the_nearest", GOOD.replace("netmask", "netmsk"), ["netmsk", "netmask"]),
    case("duplicate_keys", GOOD.replace('"ip"', '"ip": "10.77.0.9", "ip"'), ["ip", "twice|duplicate|again"]),
    case("number_as_string", GOOD.replace('"ip"', '"mtu": "1500", "ip"'), ["mtu", "number"]),
    case("gateway_outside_the_netmask", GOOD.replace('"ip"', '"gateway": "192.0.2.1", "ip"'), ["gateway"]),
    on_error_fail_refuses,
    on_error_fail_refuses_every_routed_call,
    our_address_is_not_available_once_a_fault_is_known,
    without_host,
    no_such_bdf,
    no_such_interface,
    a_full_dev_shm_changes_nothing,
    ulimit_n_256,
    rlimit_fsize_0,
    rlimit_as_leaves_the_program_on_the_kernel,
    rlimit_as_refuses_where_the_config_says_so,
]


def text_case(name, text):
    def run(context):
        result = context.run(OURS, text)
        assert (result.stdout, result.stderr) == ("listening\n", ""), (result.stdout, result.stderr)

    run.__name__ = name
    return run


CASES += [
    text_case("config_with_bom_crlf_and_remarks", b"\xef\xbb\xbf" + GOOD.replace(
        ", ", ", # a remark\r\n").replace("}}", ",}} // end\r\n").encode()),
]

if __name__ == "__main__":
    main("bad_input", CASES, Context, lambda context: shutil.rmtree(context.folder, ignore_errors=True))
