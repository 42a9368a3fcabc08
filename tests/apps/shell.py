#!/usr/bin/env python3
"""The scripts of the README: what is installed where there is dnf, the demo's output, and what is left when it is stopped."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from folder import work_folder
from harness import ROOT, labs, main, wait_for

DEPS = os.path.join(ROOT, "scripts", "deps.sh")
# What scripts need of a system beside the commands that they look for.
TOOLS = "bash sh awk basename cat chmod cut dirname env false grep head ls mkdir mktemp mv rm sed sort tail tr true".split()
# Names that Fedora 40 and openEuler 24.03 have packages by; the first of a need that is known is taken.
KNOWN = set("""binutils busybox patch cargo cpio kmod clang-devel clippy curl dpdk dpdk-devel dpdk-tools dpkg-dev ethtool gcc gcc-c++ gdb git git-core glibc-devel golang
gperftools-libs haproxy httpd-tools iperf3 iproute iputils java-17-openjdk-devel jemalloc ksh libcap libseccomp
lighttpd logrotate memcached mosquitto netcat nftables nginx nodejs openssl pkgconf-pkg-config postgresql-contrib
postgresql-server procps-ng python3 python3-gunicorn qemu-system-x86-core wireshark-cli python3-pip python3-requests python3-test redis rpm-build rpmlint rsync
rsyslog rust rustfmt socat strace tcpdump util-linux valgrind valkey-compat-redis varnish wget""".split())
# Not there: the tests that need them are skipped.
ABSENT = {"libmemcached", "wrk"}


class Machine:
    """A PATH on which there are the basic tools, a dnf that writes down what it is asked, and root by name."""

    def __init__(self):
        self.processes = []
        self.folder = work_folder("shell")
        self.lines = os.path.join(self.folder, "dnf.log")

    def dnf(self, known, cargo=None):
        path = os.path.join(self.folder, "bin")
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        for tool in TOOLS:
            os.symlink(shutil.which(tool), os.path.join(path, tool))
        answers = "\n".join(f"    {name}) exit 0 ;;" for name in sorted(known))
        self.script(path, "dnf", f'echo "$*" >>{self.lines}\ncase $2 in list) case $3 in\n{answers}\n    esac; exit 1 ;; esac\nexit 0')
        self.script(path, "id", "echo 0")
        self.cargo(path, cargo)
        if os.path.exists(self.lines):
            os.unlink(self.lines)
        return {"PATH": path, "HOME": self.folder, "CARGO_HOME": os.path.join(self.folder, "none")}

    def apt(self, removes):
        """An apt-get that would remove a package for each of some that are asked for."""
        environment = self.dnf(set(), "1.99.0")
        path = environment["PATH"]
        os.unlink(os.path.join(path, "dnf"))
        removals = "\n".join(f"    {name}) echo 'Remv {gone} [1:10.0]' ;;" for name, gone in removes.items())
        self.script(path, "apt-get", f'echo "$*" >>{self.lines}\ncase " $* " in *" -s "*) for word in "$@"; do case $word in\n'
                                     f"{removals}\n    esac; done ;; esac\nexit 0")
        self.script(path, "apt-cache", "echo '  Candidate: 1.0'")
        return environment

    def cargo(self, path, cargo):
        if cargo:
            self.script(path, "cargo", f'echo "cargo {cargo} (of the test)"')

    @staticmethod
    def script(folder, name, text):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)

    def deps(self, verb, known, cargo=None):
        result = subprocess.run(
            ["bash", DEPS, verb], env=self.dnf(known, cargo), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        )
        asked = []
        if os.path.exists(self.lines):
            with open(self.lines, encoding="ascii") as file:
                asked = [line.split() for line in file]
        result.installed = [name for words in asked if words[:3] == ["-q", "-y", "install"] for name in words[3:]]
        return result


def needs(_machine=None):
    """The table of deps.sh: probe, apt names, dnf names."""
    with open(DEPS, encoding="ascii") as file:
        text = file.read().split("NEEDS'\n", 1)[1].split("NEEDS", 1)[0]
    return [[part.strip() for part in line.split("|")] for line in text.splitlines() if "|" in line]


def every_need_has_a_package_of_dnf(_machine):
    for _verbs, probe, _apt, dnf in needs():
        names = dnf.split()
        assert names == ["-"] and probe.startswith("cargo") or names and set(names) <= KNOWN | ABSENT, (probe, names)


def dnf_is_asked_for_what_is_missing(machine):
    result = machine.deps("test", KNOWN, cargo="1.99.0")
    assert result.returncode == 0, result.stdout
    missing = {"gcc", "pkgconf-pkg-config", "redis", "python3", "git-core", "curl", "strace", "gdb", "valgrind"}
    # What lies in /usr/sbin or /usr/include is found there, whatever the PATH.
    assert missing <= set(result.installed) <= KNOWN, (result.installed, result.stdout)
    assert len(result.installed) == len(set(result.installed)) or "redis" in result.installed, result.installed
    assert "deps.sh: installing gcc" in result.stdout, result.stdout
    build = machine.deps("build", KNOWN, cargo="1.99.0")
    assert "gcc" in build.installed and "redis" not in build.installed, build.installed


def a_package_that_dnf_does_not_know_is_one_line(machine):
    result = machine.deps("test", KNOWN - {"strace", "redis"}, cargo="1.99.0")
    assert result.returncode == 0, result.stdout
    assert re.search("^deps.sh: left out, dnf knows none of: +strace$", result.stdout, re.MULTILINE), result.stdout
    assert "strace" not in result.installed and "valkey-compat-redis" in result.installed, result.installed


def a_cargo_that_is_too_old_is_one_line(machine):
    for cargo, found in ((None, "none"), ("1.10.0", "cargo 1.10.0")):
        result = machine.deps("build", KNOWN, cargo)
        assert result.returncode != 0 and {"cargo", "rust"} <= set(result.installed), (result.installed, result.stdout)
        assert re.search(rf"no cargo of version [\d.]+ or newer is here \(found: {found}", result.stdout), result.stdout


def apt_removes_nothing(machine):
    if os.geteuid() != 0:
        return "needs root: services are kept from starting by a file of the system"
    environment = machine.apt({"gdb": "gdb-minimal", "strace": "strace-backport"})
    result = subprocess.run(["bash", DEPS, "test"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    with open(machine.lines, encoding="ascii") as file:
        asked = [line.split() for line in file]
    assert "left out: gdb, which would remove gdb-minimal (take it from where that came)" in result.stdout, result.stdout
    (done,) = [words for words in asked if "-y" in words]
    assert "--no-remove" in done and "valgrind" in done and not {"gdb", "strace"} & set(done), done
    # What needs them is skipped, and the rest goes on.
    assert result.returncode == 0, result.stdout
    return None


def services_may_start_again_after_an_installation(machine):
    """Also in a shell that ends at unset variables, as scripts/test.sh is one."""
    if os.geteuid() != 0:
        return "needs root: services are kept from starting by a file of the system"
    before = policy()
    for command in (["bash", DEPS, "test"], ["bash", "-euc", f". {DEPS} test; echo done"]):
        result = subprocess.run(command, env=machine.apt({}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        assert "still missing after" in result.stdout, result.stdout
        assert "unbound" not in result.stdout, result.stdout
        assert policy() == before, policy()
    return None


def policy():
    """What says whether services are started when their packages come."""
    with contextlib.suppress(FileNotFoundError), open("/usr/sbin/policy-rc.d", encoding="utf-8") as file:
        return file.read()
    return None


def without_root(machine):
    environment = machine.dnf(KNOWN, "1.99.0")
    Machine.script(environment["PATH"], "id", "echo 1000")
    result = subprocess.run(["bash", DEPS, "build"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode != 0 and "run as root to install" in result.stdout and "gcc" in result.stdout, result.stdout


def the_folders_of_the_dead_go_and_those_of_the_living_stay(machine):
    base = os.path.join(machine.folder, "tmp")
    os.mkdir(base)
    code = {
        "python": "from folder import work_folder; print(work_folder('kind'), flush=True); import time; time.sleep(60)",
        "bash": f". {ROOT}/scripts/folder.sh; knet_folder kind; echo $knet_work; read -r _",
    }
    for language, text in code.items():
        def start():
            command = [sys.executable, "-c", text] if language == "python" else ["bash", "-c", text]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.path.join(ROOT, "tests", "apps"),
                                       env={**os.environ, "TMPDIR": base})
            return process, process.stdout.readline().strip()

        (first, dead), (second, living) = start(), start()
        assert os.path.isdir(dead) and os.path.isdir(living), (language, dead, living)
        others = os.path.join(base, "knet-kind-others" if language == "python" else "knet-kind.others")
        os.mkdir(others)
        first.kill()
        first.wait()
        third, _ = start()
        assert not os.path.exists(dead) and os.path.isdir(living) and os.path.isdir(others), language
        for process in (second, third):
            process.kill()
            process.wait()


def a_killed_runner_s_lab_is_taken_down_by_the_next(machine):
    """No privilege: two hosts over a unix socket."""
    base = os.path.join(machine.folder, "runners")
    os.mkdir(base)
    holds = ("from harness import Lab; lab = Lab(device='unix'); p = lab.start('server', 'sleep', '60'); print(lab.state, p.pid, lab.work,"
             " flush=True); p.wait()")

    def start(code):
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=os.path.join(ROOT, "tests", "apps"),
                                env={**os.environ, "TMPDIR": base, "KNET_LAB_DIR": os.path.join(base, "labs")})

    first = start(holds)
    state, pid, work = first.stdout.readline().split()
    first.kill()
    first.wait()
    assert os.path.isdir(state) and os.path.isdir(work) and os.path.isdir(f"/proc/{pid}")
    second = start("from harness import Lab; Lab(device='unix').close()")
    assert second.wait(60) == 0
    assert not os.path.exists(state) and not os.path.exists(work)
    wait_for("its program has ended", lambda: not os.path.isdir(f"/proc/{pid}"))


def ours():
    """What a demo may leave: namespaces, labs, processes of ours, folders."""
    spaces = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return (
        {line.split()[0] for line in spaces.splitlines() if "knet-demo" in line}
        | {name for name in (os.listdir(labs()) if os.path.isdir(labs()) else []) if name.startswith("demo-")}
    )


def group(pid):
    """Processes of a group."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            found.append(int(entry))
    return found


class Demo:
    def __init__(self, *options):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            [os.path.join(ROOT, "scripts", "demo.sh"), *options], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )

    def text(self):
        self.log.seek(0)
        return self.log.read()


def needs_root():
    return "needs root for network namespaces" if os.geteuid() != 0 else None


def the_demo_prints_its_table_and_writes_it(machine):
    if reason := needs_root():
        return reason
    path = os.path.join(machine.folder, "demo.json")
    demo = Demo("--requests", "4000", "--json", path)
    assert demo.process.wait(300) == 0, demo.text()
    text = demo.text()
    for words in ("redis-server on the kernel", "redis-server under the shim, dedicated", "redis-server under the shim, both",
                  "kernel: 50 clients", "inline: 1000 clients"):
        assert words in text, (words, text)
    with open(path, encoding="ascii") as file:
        told = json.load(file)
    assert list(told) == ["rows"] and [(row["mode"], row["test"], row["clients"]) for row in told["rows"]] == [
        (mode, test, clients) for mode in ("dedicated", "inline", "both") for clients in (50, 1000) for test in ("SET", "GET")], told
    for row in told["rows"]:
        assert set(row) == {"mode", "test", "clients", "kernel_rps", "knet_rps", "ratio", "served_by_stack"}, row
        assert row["kernel_rps"] > 0 and row["knet_rps"] > 0 and row["served_by_stack"] == 1, row
        assert abs(row["ratio"] - row["knet_rps"] / row["kernel_rps"]) < 0.01, row
    assert len(re.findall(r"^(?:dedicated|inline|both) +(?:SET|GET) +(?:50|1000) .* 100%$", text, re.MULTILINE)) == 12, text
    wait_for("nothing is left", lambda: not ours())
    return None


def the_demo_leaves_nothing_when_it_is_stopped(_machine):
    """By Ctrl-C, which the whole group gets, at every stage of it."""
    if reason := needs_root():
        return reason
    stages = [(words, "dedicated") for words in (
        "building the release", "redis-server on the kernel", "kernel: 50 clients", "kernel: 1000 clients", "redis-server under the shim",
        "dedicated: 50 clients", "dedicated: 1000 clients")]
    for words, mode in [*stages, ("redis-server under the shim", "both"), ("both: 50 clients", "both")]:
        demo = Demo("--requests", "20000", "--mode", mode)
        wait_for(words, lambda: words in demo.text() or demo.process.poll() is not None, 120)
        time.sleep(0.05)
        os.killpg(demo.process.pid, signal.SIGINT)
        status = demo.process.wait(30)
        assert status in (130, -signal.SIGINT), (words, status, demo.text())
        wait_for(f"{words}: nothing is left", lambda: not ours() and not group(demo.process.pid), 20)
    return None


CASES = [
    every_need_has_a_package_of_dnf, dnf_is_asked_for_what_is_missing, a_package_that_dnf_does_not_know_is_one_line,
    a_cargo_that_is_too_old_is_one_line, apt_removes_nothing, services_may_start_again_after_an_installation, without_root,
    the_folders_of_the_dead_go_and_those_of_the_living_stay,
    a_killed_runner_s_lab_is_taken_down_by_the_next, the_demo_prints_its_table_and_writes_it,
    the_demo_leaves_nothing_when_it_is_stopped,
]

if __name__ == "__main__":
    main("shell", CASES, Machine, lambda machine: shutil.rmtree(machine.folder, ignore_errors=True))
