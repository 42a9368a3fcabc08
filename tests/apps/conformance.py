#!/usr/bin/env python3
"""The programs of tests/conformance: on the kernel, which proves the cases, then under the shim, looped and over the wire.

usage: conformance.py [--kernel] [FAMILY[::CASE]...]      --kernel: without the shim
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from folder import work_folder
from harness import CLIENT, ROOT, SERVER, Lab, leave_the_network

SOURCES = os.path.join(ROOT, "tests", "conformance")
FLAGS = ["-std=gnu11", "-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra", "-Werror", "-pthread"]
# Built twice: with 64-bit offsets named, fcntl becomes fcntl64; unchecked, dprintf keeps its name.
VARIANTS = {
    "descriptors": {"descriptors_fcntl64": ["-D_FILE_OFFSET_BITS=64"]},
    "stdio": {"stdio_unchecked": ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"]},
}
# What the compiler must have made of the calls, or the case checks nothing.
SYMBOLS = {
    "polls": ["__poll_chk", "__ppoll_chk", "__read_chk", "__recv_chk", "__recvfrom_chk"],
    "descriptors_fcntl64": ["fcntl64"],
    "numbers": ["__open_2", "__open64_2", "__openat_2", "__openat64_2"],
    "stdio": ["__dprintf_chk", "__vdprintf_chk"],
    "stdio_unchecked": ["dprintf", "vdprintf"],
}
LONG = os.environ.get("KNET_TEST_LONG") == "1"
PORTS = 256  # of a program
ANCHOR = 19_999


def build(folder):
    """Every program, as {family: path}; raises with the compiler's words."""
    programs = {}
    for name in sorted(os.listdir(SOURCES)):
        family, dot, ending = name.rpartition(".")
        if ending != "c":
            continue
        for variant, flags in {family: [], **VARIANTS.get(family, {})}.items():
            path = os.path.join(folder, variant)
            subprocess.run(["gcc", *FLAGS, *flags, "-o", path, os.path.join(SOURCES, name)], check=True)
            if variant in SYMBOLS:
                symbols = subprocess.run(["nm", "-D", path], check=True, stdout=subprocess.PIPE, text=True).stdout
                missing = [word for word in SYMBOLS[variant] if f" {word}@" not in symbols]
                assert not missing, f"{variant} does not call {missing}: {symbols}"
            programs[variant] = path
    return programs


class Result:
    """What a program said: {case: None or why not}, the connections it made, and what went wrong with it as a whole."""

    def __init__(self):
        self.cases = {}
        self.connections = None
        self.fault = None
        self.errors = ""

    def line(self, line):
        if line.startswith("ok "):
            self.cases[line[3:]] = None
        elif line.startswith("not ok "):
            name, _, why = line[7:].partition(": ")
            self.cases[name] = why
        elif line.startswith("connections "):
            self.connections = int(line[12:])


def end_group(process):
    """A program and every child of it that is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def perform(command, agent=None, seconds=120):
    """Runs a program to its end; lines for the peer go to `agent`, its answers back."""
    result = Result()
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
            start_new_session=True,
        )
        late = threading.Timer(seconds, end_group, [process])
        late.start()
        if agent:
            agent.hear(process.stdin)
        try:
            for line in process.stdout:
                line = line.rstrip("\n")
                if line.startswith("peer ") and agent:
                    agent.tell(line[5:])
                else:
                    result.line(line)
            status = process.wait()
        finally:
            late.cancel()
            if agent:
                agent.hear(None)
            end_group(process)
            process.wait()
        errors.seek(0)
        result.errors = errors.read()[-2000:]
    bad = sum(why is not None for why in result.cases.values())
    if result.connections is None:
        result.fault = f"ended with status {status} before its end (limit {seconds} s)"
    elif status != min(bad, 99):
        result.fault = f"exit status {status} with {bad} failures"
    return result


class Agent:
    """A program in the role of the peer: commands go in, answers go to whoever is served now."""

    def __init__(self, command, log):
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self.listener = None
        self.drained = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        for line in self.process.stdout:
            with self.lock:
                if line.startswith("-1 "):
                    self.last = line.split()
                    self.drained.set()
                elif self.listener:
                    with contextlib.suppress(OSError, ValueError):
                        self.listener.write(line)
                        self.listener.flush()
        with self.lock:
            if self.listener:  # the peer is gone: its client must not wait for it
                with contextlib.suppress(OSError, ValueError):
                    self.listener.close()
        self.drained.set()

    def tell(self, line):
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def ask(self, words, seconds=30):
        """One command of our own; raises unless the peer does it."""
        self.drained.clear()
        self.last = None
        self.tell(f"-1 {words}")
        if not self.drained.wait(seconds) or not self.last or int(self.last[1]) < 0:
            raise AssertionError(f"the peer's {words}: {self.last}")

    def hear(self, listener):
        """Late answers to the program before are dropped first."""
        with self.lock:
            self.listener = None
        if listener and self.process.poll() is None:
            self.ask("forget 0 0")
        with self.lock:
            self.listener = listener

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.thread.join(5)


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, verdict, name, why=""):
        self.failed += verdict == "FAIL"
        print(f"{verdict} conformance::{name}{': ' if why else ''}{why}", flush=True)


def on_the_kernel(report, programs, wanted, folder):
    """Every case holds on the kernel, else it says nothing about the shim. The cases that do."""
    sound = {}
    for number, (family, path) in enumerate(programs.items()):
        port = 20_000 + number * PORTS
        agent = Agent([path, "server", "127.0.0.1", str(port)], os.path.join(folder, "agent.log"))
        failed_before = report.failed
        try:
            for kind, result in (
                ("looped", perform([path, "both", "127.0.0.1", str(port), *wanted[family]])),
                ("wire", perform([path, "client", "127.0.0.1", str(port), "127.0.0.1", *wanted[family]], agent)),
            ):
                for name, why in result.cases.items():
                    if why:
                        report.line("FAIL", f"kernel::{family}::{name}", f"{kind}: {why}")
                if result.fault:
                    report.line("FAIL", f"kernel::{family}", f"{kind}: {result.fault} {result.errors}")
                sound[family, kind] = [name for name, why in result.cases.items() if not why]
        finally:
            agent.close()
        if report.failed == failed_before:
            report.line("PASS", f"kernel::{family}", f"{len(sound[family, 'looped'])} cases, {len(sound[family, 'wire'])} with a peer")
    return sound


def known():
    """Cases that the shim does not pass yet, with the reason: visible as skipped, and wrong here once they pass."""
    with open(os.path.join(SOURCES, "known.txt"), encoding="ascii") as file:
        lines = [line.split(None, 1) for line in file if line.strip() and not line.startswith("#")]
    return {name: reason.strip() for name, reason in lines}


KNOWN = known()


def judge(report, lab, name, expected, result, accepted_before):
    for case in expected:
        reason = KNOWN.get(f"{name}::{case}")
        if reason:
            passed = case in result.cases and not result.cases[case]
            report.line(*(("FAIL", f"{name}::{case}", "passes now: take it off known.txt") if passed else ("SKIP", f"{name}::{case}", reason)))
            result.cases.pop(case, None)
            continue
        if case not in result.cases:
            report.line("FAIL", f"{name}::{case}", f"not reached: {result.fault or 'the program stopped after cases that hang'}")
        elif result.cases[case]:
            report.line("FAIL", f"{name}::{case}", result.cases[case])
        else:
            report.line("PASS", f"{name}::{case}")
    if result.fault or any(result.cases.values()):
        sys.stderr.write(result.errors)
    accepted = lab.stats().get("flows_accepted", 0) - accepted_before
    if result.connections is None or accepted < result.connections:
        report.line("FAIL", f"{name}::accelerated", f"the stack accepted {accepted} of {result.connections} connections")
    else:
        report.line("PASS", f"{name}::accelerated", f"{accepted} connections accepted, at least {result.connections} made")


def under_the_shim(report, programs, wanted, sound, folder):
    lab = Lab(device="unix")
    log = os.path.join(folder, "agent.log")
    anchors = []
    try:
        # A listener at each end keeps the hosts, and with them the counters, for the whole run.
        any_program = next(iter(programs.values()))
        for verb, address in (("server", SERVER), ("client", CLIENT)):
            anchors.append(Agent(lab.command(verb, any_program, "server", address, str(ANCHOR)), log))
            anchors[-1].ask(f"listen 1 {ANCHOR}")
        for number, (family, path) in enumerate(programs.items()):
            port = str(20_000 + number * PORTS)
            limit = 240 if LONG else 120
            before = lab.stats().get("flows_accepted", 0)
            result = perform(lab.command("server", path, "both", SERVER, port, *wanted[family]), seconds=limit)
            judge(report, lab, family, sound[family, "looped"], result, before)
            if not sound[family, "wire"]:
                continue
            agent = Agent(lab.command("server", path, "server", SERVER, port), log)
            try:
                before = lab.stats().get("flows_accepted", 0)
                result = perform(lab.command("client", path, "client", SERVER, port, CLIENT, *wanted[family]), agent, limit)
                judge(report, lab, f"{family}_wire", sound[family, "wire"], result, before)
            finally:
                agent.close()
    finally:
        for anchor in anchors:
            anchor.close()
        lab.close()


def main():
    words = sys.argv[1:]
    kernel_only = "--kernel" in words
    wanted = {}
    for word in words:
        if not word.startswith("--"):
            family, _, case = word.partition("::")
            wanted.setdefault(family, []).extend([case] if case else [])
    report = Report()
    leave_the_network()
    folder = work_folder("conformance")
    try:
        programs = build(folder)
        if wanted:
            programs = {family: programs[family] for family in wanted}
        wanted = {family: wanted.get(family, []) for family in programs}
        sound = on_the_kernel(report, programs, wanted, folder)
        if not kernel_only:
            try:
                under_the_shim(report, programs, wanted, sound, folder)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                with open(os.path.join(folder, "agent.log"), errors="replace") as log:
                    sys.stderr.write(log.read()[-2000:])
                sys.stderr.write(f"{getattr(error, 'output', None) or ''}\n")
                report.line("FAIL", "shim", repr(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
