#!/usr/bin/env python3
"""The scripts of tests/conformance/scripts: every answer as Linux gives it, on the kernel and under the shim.

usage: scripts.py [--kernel] [--bless] [FAMILY[::CASE]...]
    --kernel   only on the kernel, which proves the scripts
    --bless    writes what the kernel answers into the scripts (to be reviewed before it is committed)
    --page     writes docs/compatibility.md from the run, if all is as expected; without it a page that is stale is a fault
    --mark ID  writes what the shim answers otherwise into the chosen scripts, with this reason of differences.txt
"""

import os
import shutil
import sys

import compatibility
import script
from folder import work_folder

ATTEMPTS = (3_000, 30_000, 300_000)  # us that bytes may travel; the longest time decides


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, verdict, name, why=""):
        self.failed += verdict == "FAIL"
        print(f"{verdict} scripts::{name}{': ' if why else ''}{why}", flush=True)


def chosen(families, words):
    wanted = {}
    for word in words:
        family, _, name = word.partition("::")
        wanted.setdefault(family, set()).add(name)
    unknown = [word for word in wanted if word not in families]
    assert not unknown, f"no family {unknown}"
    cases = [
        case for family, all_of_it in families.items() for case in all_of_it
        if not wanted or (family in wanted and ("" in wanted[family] or case.name in wanted[family]))
    ]
    assert cases, f"no case {words}"
    return cases


def here(line):
    return line.here if line.reason else line.expected


def wrong(case, answers, expectation):
    """The first line that is answered otherwise, as text; None when all is as expected."""
    for line, answer in zip(case.lines, answers + ["nothing"] * len(case.lines)):
        if answer != expectation(line):
            if line.reason and answer == line.expected:
                return f"'{line.text}' is as on Linux now: take the difference '{line.reason}' off it"
            return f"'{line.text}' is {answer}, not {expectation(line)}"
    return None


def judged(cases, run, expectation):
    """What is wrong with each case. A wrong one gets another chance with more time for the bytes."""
    left, verdicts, last = list(cases), {}, {}
    for settle in ATTEMPTS:
        for case, answers in zip(left, run(left, settle)):
            verdicts[case.full_name] = wrong(case, answers, expectation)
            last[case.full_name] = answers
        left = [case for case in left if verdicts[case.full_name]]
        if not left:
            break
    return verdicts, last


def bless(families, cases, program):
    """Twice, so that an answer that is left to chance shows."""
    first = script.on_the_kernel(program, cases, lambda line: line.expected)
    for case, answers, again in zip(cases, first, script.on_the_kernel(program, cases, lambda line: None, 20_000)):
        for line, answer, other in zip(case.lines, answers, again):
            if answer != other:
                print(f"{case.full_name}: '{line.text}' is {answer}, then {other}")
            line.expected = other
        if len(again) < len(case.lines) or again[-1].startswith(("hang", "signal")):
            print(f"{case.full_name}: ends early: {again[-1]}")
    save(families)


def save(families):
    for family, all_of_it in families.items():
        script.write(os.path.join(script.FOLDER, "scripts", f"{family}.txt"), all_of_it)


def differs(case, answers, reason):
    """What is answered otherwise is written down, with the reason."""
    for line, answer in zip(case.lines, answers + ["nothing"] * len(case.lines)):
        line.reason, line.here = (reason, answer) if answer != line.expected else (None, None)


def main():
    words = sys.argv[1:]
    mark = words.pop(words.index("--mark") + 1) if "--mark" in words else None
    words = [word for word in words if not word.startswith("--")]
    report = Report()
    reason = script.why_not()
    if reason:
        print(f"SKIP scripts::all: {reason}")
        return
    families = script.read_all()
    cases = chosen(families, words)
    folder = work_folder("scripts")
    try:
        program = script.build(folder)
        if "--bless" in sys.argv:
            bless(families, cases, program)
            return
        linux = lambda line: line.expected
        verdicts, _ = judged(cases, lambda some, settle: script.on_the_kernel(program, some, linux, settle), linux)
        sound = [case for case in cases if not verdicts[case.full_name]]
        for case in cases:
            if verdicts[case.full_name]:
                report.line("FAIL", f"kernel::{case.full_name}", verdicts[case.full_name])
        report.line("FAIL" if report.failed else "PASS", "kernel", f"{len(sound)} of {len(cases)} cases")
        if "--kernel" in sys.argv:
            return
        reasons = script.differences()
        with script.laboratory(program) as lab:
            before = lab.stats().get("flows_accepted", 0)
            verdicts, last = judged(sound, lambda some, settle: script.under_the_shim(program, lab, some, here, settle), here)
            if mark:
                for case in sound:
                    differs(case, last[case.full_name], mark)
                save(families)
                return
            for case in sound:
                unknown = {line.reason for line in case.lines if line.reason} - set(reasons)
                if unknown:
                    report.line("FAIL", case.full_name, f"no such difference in differences.txt: {unknown}")
                report.line("FAIL" if verdicts[case.full_name] else "PASS", case.full_name, verdicts[case.full_name] or "")
            if len(cases) == sum(len(some) for some in families.values()) and not report.failed:
                if "--page" in sys.argv:
                    compatibility.write(families)
                current = compatibility.is_current(families)
                report.line("PASS" if current else "FAIL", "page", "" if current else "docs/compatibility.md is stale: scripts.py --page")
            made = script.connections(sound, [last[case.full_name] for case in sound])
            accepted = lab.stats().get("flows_accepted", 0) - before
            report.line("PASS" if accepted >= made else "FAIL", "accelerated", f"{accepted} connections accepted, at least {made} made")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if report.failed:
            sys.exit(1)


if __name__ == "__main__":
    main()
