"""docs/compatibility.md, made from a run of the scripts: what was compared, what is the same, what differs and why."""

import os
import re
from collections import defaultdict

import script
from harness import ROOT

PAGE = os.path.join(ROOT, "docs", "compatibility.md")

# The C functions behind the words of the scripts, where the names differ. A word in brackets is a part of a larger step.
CALLS = {
    "tcp": ["socket"], "listener": ["socket", "setsockopt", "bind", "listen"], "dial": ["socket", "connect"],
    "pair": ["socket", "bind", "listen", "connect", "accept"], "reset": ["setsockopt", "close"], "closerange": ["close_range"],
    "dupfd": ["fcntl"], "sockname": ["getsockname"], "peername": ["getpeername"], "set": ["setsockopt"], "get": ["getsockopt"],
    "positive": ["getsockopt"], "tcpinfo": ["getsockopt"], "cpu": ["getsockopt"], "message": ["recvmsg"], "skip": ["recv"], "fill": ["send"], "drain": ["recv", "poll"],
    "polls": ["poll"], "epoll": ["epoll_create1"], "ctl": ["epoll_ctl"], "wait": ["epoll_wait"], "print": ["dprintf"], "accept_name": ["accept"],
    "handle": ["sigaction"], "kill": ["pthread_kill"], "alarm": ["setitimer"], "cancel": ["pthread_cancel"],
}
NO_CALLS = {"exhaust", "pause", "join", "busy", "caught", "rawclose"}
HOW = {"null": "recv", "recvmmsg0": "recvmmsg"}
FAULTS = {"fionread": "ioctl", "fionbio": "ioctl"}
OPENS = {"event": "eventfd", "timer": "timerfd_create"}


def words_of(line):
    """The words of the call itself, without what only says where or how long it runs."""
    words = line.text.split()
    while words[0] in ("bg", "child"):
        words = words[1:]
    return words[3:] if words[0] == "lasts" else words


def calls_of(line):
    words = words_of(line)
    name = words[0]
    if name in NO_CALLS:
        return []
    if name == "fault":
        how = words[1].split("_")[0]
        return [FAULTS.get(how, how)]
    if name in ("send", "recv"):
        how = words[4] if len(words) > 4 else name
        return [HOW.get(how, how if how.isidentifier() and how not in ("unspec", "short", "six") else "sendto")]
    if name == "batch":
        return ["sendmmsg" if words[2] == "send" else "recvmmsg"]
    if name in ("parts", "mixed"):
        return [words[2]]
    if name == "open":
        return [OPENS.get(words[2], "open")]
    if name == "accept" and len(words) > 3:
        return ["accept4"]
    return CALLS.get(name, [name])


class Row:
    """What the cases say of one call, option or flag."""

    def __init__(self):
        self.cases = set()
        self.reasons = set()

    def add(self, case, line):
        self.cases.add(case.full_name)
        if line.reason:
            self.reasons.add(line.reason)


def concerned(reason, calls, known):
    """The calls that a difference is about: those that it names, else those of the line."""
    named = known & set(re.findall(r"[a-z_0-9]+", reason.what))
    return named or set(calls)


def rows(families, exported):
    calls, options, flags, requests = (defaultdict(Row) for _ in range(4))
    reasons = script.differences()
    for cases in families.values():
        for case in cases:
            for line in case.lines:
                words = words_of(line)
                for call in calls_of(line):
                    calls[call].cases.add(case.full_name)
                if line.reason:
                    for call in concerned(reasons[line.reason], calls_of(line), exported):
                        calls[call].reasons.add(line.reason)
                if words[0] in ("set", "get", "positive"):
                    options[words[2]].add(case, line)
                if words[0] == "tcpinfo":
                    options["TCP_INFO"].add(case, line)
                if words[0] in ("send", "recv", "message") and len(words) > 3:
                    for flag in words[3].split("|"):
                        if not flag.isdigit():
                            flags[f"MSG_{flag}", "send" if words[0] == "send" else "recv"].add(case, line)
                if words[0] in ("fcntl", "ioctl"):
                    requests[words[2]].add(case, line)
                if words[0] == "dupfd":
                    requests[words[4] if len(words) > 4 else "F_DUPFD"].add(case, line)
    return calls, options, flags, requests


CASE = re.compile(r"^(?:CASE|CASE_FOR|WIRE|WIRE_ONCE)\((\w+)")
FUNCTION = re.compile(r"^(?:static|SOME|__attribute__).*?\b(\w+)\([^;]*$")


INCLUDE = re.compile(r'^#include "(\w+\.h)"', re.M)


def sources(folder, name):
    """A C file and the headers of the folder that it includes, each behind those that it needs."""
    found = []

    def visit(part):
        with open(os.path.join(folder, part), encoding="utf-8") as file:
            for header in INCLUDE.findall(file.read()):
                if header not in found and os.path.exists(os.path.join(folder, header)):
                    visit(header)
        found.append(part)

    visit(name)
    return found


def programs():
    """{call: cases of the C programs that reach it, also through their helpers}, and how many cases there are."""
    folder = script.FOLDER
    found, total = defaultdict(set), 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".c"):
            continue
        bodies, cases = {}, []
        for part in sources(folder, name):
            current = None
            with open(os.path.join(folder, part), encoding="utf-8") as file:
                for line in file:
                    case = CASE.match(line)
                    head = case or FUNCTION.match(line)
                    if head and not line.startswith((" ", "#", "}")):
                        current = head.group(1)
                        bodies[current] = ""
                        if case:
                            cases.append(current)
                    if current:
                        bodies[current] += line
        total += len(cases)
        words = {function: set(re.findall(r"\b[a-z_][a-z0-9_]*\b", body)) for function, body in bodies.items()}
        for case in cases:
            reached, left = set(), [case]
            while left:
                for word in words[left.pop()] - reached:
                    reached.add(word)
                    if word in words:
                        left.append(word)
            for word in reached:
                found[word].add(f"{name}::{case}")
    return found, total


def verdict(row, name, reasons):
    """same, differs, passes to the kernel, or not compared."""
    kept = reasons["kernel_kept"].what.split()
    if name in kept:
        answer = "passes to the kernel"
    elif row.reasons:
        answer = "differs"
    else:
        answer = "same"
    links = ", ".join(f"[{reason}](#differences)" for reason in sorted(row.reasons))
    return f"{answer}{': ' if links else ''}{links}"


def page(families):
    reasons = script.differences()
    cases = sum(len(some) for some in families.values())
    in_programs, program_cases = programs()
    with open(os.path.join(ROOT, "frame", "exports.txt"), encoding="ascii") as file:
        exported = file.read().split()
    calls, options, flags, requests = rows(families, set(exported))
    out = [
        "# Compatibility, call by call",
        "",
        "Made by `tests/apps/scripts.py --page` from a run; not to be edited. Each script of `tests/conformance/scripts` is",
        "performed on the kernel and under the shim, and every answer compared: return value, errno, events, option values,",
        "bytes. So do the programs of `tests/conformance`, over the wire as well, and `tests/c/parity.c`. Random scripts",
        "(`tests/apps/fuzz.py`) look for more. Everything about a number that is not accelerated is libc's own answer.",
        "",
        f"Compared: {cases} scripts and {program_cases} cases of programs.",
        "",
        "## Calls",
        "",
        "All that the preloaded object exports, and what the scripts reach besides. Behind a call: the scripts and the cases of",
        "programs that make it.",
        "",
        "| call | scripts | programs | answers |",
        "|---|---|---|---|",
    ]
    others = sorted(set(calls) - set(exported) - {"sigaction", "pthread_kill", "setitimer", "pthread_cancel", "fstat"})
    for name in [*exported, *others]:
        row, there = calls.get(name, Row()), in_programs.get(name, ())
        answer = verdict(row, name, reasons) if row.cases or there else "not compared here"
        out.append(f"| `{name}`{'' if name in exported else ' (not exported)'} | {len(row.cases)} | {len(there)} | {answer} |")
    for title, table in (
        ("Options", {f"`{name}`": (row, name) for name, row in options.items()}),
        ("Flags", {f"`{flag}` of {call}": (row, flag) for (flag, call), row in flags.items()}),
        ("fcntl and ioctl", {f"`{name}`": (row, name) for name, row in requests.items()}),
    ):
        out += ["", f"## {title}", "", "| what | scripts | answers |", "|---|---|---|"]
        out += [f"| {what} | {len(row.cases)} | {verdict(row, name, reasons)} |" for what, (row, name) in sorted(table.items())]
    out += ["", "## Differences", "", "| name | what | Linux | here | why, where | shown by |", "|---|---|---|---|---|---|"]
    shown = defaultdict(set)
    for some in families.values():
        for case in some:
            for line in case.lines:
                if line.reason:
                    shown[line.reason].add(case.full_name)
    for name, it in sorted(reasons.items()):
        witnesses = sorted(shown[name])
        proof = f"`{witnesses[0]}`{f' and {len(witnesses) - 1} more' if len(witnesses) > 1 else ''}" if witnesses else "no script"
        out.append(f"| {name} | {it.what} | {it.linux} | {it.here} | {it.why} | {proof} |")
    return "\n".join(out) + "\n"


def is_current(families):
    with open(PAGE, encoding="utf-8") as file:
        return file.read() == page(families)


def write(families):
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page(families))
