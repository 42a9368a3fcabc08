"""Scripts of socket calls (tests/conformance/script): reading them, performing them on the kernel and under the shim."""

import contextlib
import dataclasses
import os
import re
import subprocess

from harness import ROOT, SERVER, Lab, leave_the_network

FOLDER = os.path.join(ROOT, "tests", "conformance")
FLAGS = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
PORT = 20_000


@dataclasses.dataclass
class Line:
    text: str
    expected: str | None = None  # what Linux answers
    reason: str | None = None  # of the reviewed list, where we answer otherwise
    here: str | None = None

    def written(self):
        words = self.text
        if self.expected is not None:
            words += f" = {self.expected}"
        if self.reason is not None:
            words += f" ! {self.reason} {self.here}"
        return words


@dataclasses.dataclass
class Case:
    family: str
    name: str
    lines: list
    notes: list = dataclasses.field(default_factory=list)

    @property
    def full_name(self):
        return f"{self.family}::{self.name}"


def read_line(text):
    words, _, reason = text.partition(" ! ")
    call, equals, expected = words.partition(" = ")
    line = Line(call.strip(), expected.strip() if equals else None)
    if reason:
        line.reason, _, line.here = reason.strip().partition(" ")
        line.here = line.here.strip()
    return line


def read(path):
    """The cases of a file; comments stay with the case behind them."""
    family = os.path.basename(path).removesuffix(".txt")
    cases, notes = [], []
    with open(path, encoding="ascii") as file:
        for raw in file:
            text = raw.rstrip("\n")
            if text.startswith("case "):
                cases.append(Case(family, text[5:].strip(), [], notes))
                notes = []
            elif text.startswith("#") or not text.strip():
                notes.append(text)
            else:
                cases[-1].lines.append(read_line(text))
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"{family} has two cases named {twice}"
    return cases


def write(path, cases):
    with open(path, "w", encoding="ascii") as file:
        for case in cases:
            for note in case.notes:
                file.write(note + "\n")
            file.write(f"case {case.name}\n")
            for line in case.lines:
                file.write(line.written() + "\n")


def read_all():
    folder = os.path.join(FOLDER, "scripts")
    return {
        name.removesuffix(".txt"): read(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith(".txt")
    }


@dataclasses.dataclass
class Difference:
    what: str
    linux: str
    here: str
    why: str


def differences():
    """The reviewed list: {name: Difference}."""
    found = {}
    with open(os.path.join(FOLDER, "differences.txt"), encoding="ascii") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, *rest = (part.strip() for part in line.split("|"))
                assert len(rest) == 4 and name not in found, line
                found[name] = Difference(*rest)
    return found


def build(folder):
    path = os.path.join(folder, "script")
    subprocess.run(["gcc", *FLAGS, "-o", path, os.path.join(FOLDER, "script", "script.c")], check=True)
    return path


def as_input(cases, answers):
    """The text for the program; answers(case, line) is what it shall wait for."""
    parts = []
    for number, case in enumerate(cases):
        parts.append(f"case {number}")
        parts += [f"{line.text}\t{answers(line) or ''}" for line in case.lines]
    return "\n".join(parts) + "\n"


def perform(command, cases, answers, settle_us, jobs, seconds):
    """Answers of each case, in the order of `cases`; the last one of a case that did not end is "hang" or "signal N"."""
    done = subprocess.run(
        [*command, "--settle", str(settle_us), "--jobs", str(jobs)], input=as_input(cases, answers),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False,
    )
    found = [None] * len(cases)
    current = None
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            current = found[int(rest)] = []
        elif word in ("hang", "signal"):
            current.append(line)
        elif word != "end":
            current.append(rest)
    missing = sum(answers is None for answers in found)
    if done.returncode != 0 or missing:
        raise AssertionError(f"the interpreter ended with {done.returncode}, {missing} cases missing: {done.stderr[-2000:]}")
    return found


def natively():
    """Moves to a network in which the kernel owns our address; a reason where that cannot be."""
    if os.geteuid() != 0:
        return "needs root for an address of its own"
    leave_the_network()
    subprocess.run(["ip", "address", "add", f"{SERVER}/32", "dev", "lo"], check=True)
    return None


def on_the_kernel(program, cases, answers, settle_us=1000, jobs=8, seconds=300):
    return perform([program, SERVER, str(PORT)], cases, answers, settle_us, jobs, seconds)


def under_the_shim(program, lab, cases, answers, settle_us=3000, jobs=8, seconds=300):
    return perform(lab.command("server", program, SERVER, str(PORT)), cases, answers, settle_us, jobs, seconds)


@contextlib.contextmanager
def laboratory(program):
    """A lab whose host stays, with its counters, until the end."""
    lab = Lab(device="unix")
    try:
        anchor = subprocess.Popen(
            lab.command("server", program, SERVER, str(PORT - 1), "anchor"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert anchor.stdout.readline() == "ready\n", "the anchor does not listen"
            yield lab
        finally:
            anchor.stdin.close()
            anchor.wait(10)
    finally:
        lab.close()


# Calls whose success is a connection that the stack must have accepted, and that they are not of another address.
ACCEPTS = re.compile(r"^(?:child |bg )*(?:accept|accept_name|pair) ")
ELSEWHERE = re.compile(r" (?:lo|any|null|unspec):?")


def connections(cases, answers):
    """How many connections the stack has accepted for these answers at least."""
    count = 0
    for case, found in zip(cases, answers):
        elsewhere = any(ELSEWHERE.search(line.text) for line in case.lines)
        for line, answer in zip(case.lines, found):
            count += bool(not elsewhere and ACCEPTS.match(line.text) and not answer.startswith("-1") and answer not in ("hang", "blocked"))
    return count
