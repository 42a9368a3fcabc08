#!/usr/bin/env python3
"""Draws scripts of socket calls, performs them on the kernel and under the shim, and shrinks what is answered otherwise.

usage: fuzz.py [--seconds N] [--count N] [--seed N] [--show]

--seed and --count repeat a run; --show prints the scripts only. A difference is printed as the smallest script that still
shows it, in the form of tests/conformance/scripts: what Linux answers, and behind `!` what we answer.
"""

import argparse
import os
import random
import shutil
import sys
import time

import grammar
import script
from folder import work_folder

BATCH = 160
JOBS = 16
# us that bytes may travel: first, and before a difference is believed.
FIRST, AGAIN = 1_500, (8_000, 40_000)
SHRINK_SECONDS = 25


def case_of(seed, number):
    lines = [script.Line(text) for text in grammar.draw(random.Random(f"{seed}/{number}"))]
    return script.Case("fuzz", f"{seed}/{number}", lines)


class Pair:
    """Runs cases on both sides: Linux first, whose answers the shim has 3 s to reach where a call only looks."""

    def __init__(self, program, lab):
        self.program = program
        self.lab = lab
        self.connections = 0

    def run(self, cases, settle):
        linux = script.on_the_kernel(self.program, cases, lambda line: None, settle, JOBS)
        for case, answers in zip(cases, linux):
            for line, answer in zip(case.lines, answers + [None] * len(case.lines)):
                line.expected = answer
        here = script.under_the_shim(self.program, self.lab, cases, lambda line: line.expected, settle * 2, JOBS)
        self.connections += script.connections(cases, here)
        return linux, here

    def differing(self, cases, settle):
        """The cases that are answered otherwise, each with both answers."""
        linux, here = self.run(cases, settle)
        return [(case, *both) for case, *both in zip(cases, linux, here) if first_difference(*both) is not None]

    def believed(self, cases):
        """As differing(), asked again with more time for the bytes."""
        for settle in AGAIN:
            if cases:
                cases = [case for case, _, _ in self.differing(cases, settle)]
        return self.differing(cases, AGAIN[-1]) if cases else []


def first_difference(linux, here):
    """The number of the first line that differs; None when there is none, or when Linux itself did not end."""
    if linux and linux[-1].startswith("hang"):
        return None
    for number in range(max(len(linux), len(here))):
        if linux[number:number + 1] != here[number:number + 1]:
            return number
    return None


def signature(case, linux, here):
    """What kind of difference it is: the call, and both answers."""
    number = first_difference(linux, here)
    words = case.lines[number].text.split()
    answer = lambda answers: answers[number] if number < len(answers) else "nothing"
    return words[0], answer(linux), answer(here)


def shrink(pair, case, linux, here):
    """Leaves out lines as long as the same kind of difference stays; all single omissions of a round are tried at once."""
    wanted = signature(case, linux, here)
    lines = [line.text for line in case.lines][: first_difference(linux, here) + 1]
    end = time.monotonic() + SHRINK_SECONDS
    size = max(1, len(lines) // 2)
    while size >= 1 and time.monotonic() < end:
        starts = range(0, len(lines) - 1, size)
        tries = [script.Case("fuzz", f"{case.name}-{start}", [script.Line(text) for text in lines[:start] + lines[start + size:]]) for start in starts]
        shorter = [
            (found, one, other) for found, one, other in pair.differing([each for each in tries if each.lines], AGAIN[0])
            if signature(found, one, other) == wanted
        ]
        if shorter:
            found, one, other = shorter[0]
            lines = [line.text for line in found.lines][: first_difference(one, other) + 1]
            size = min(size, max(1, len(lines) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    smallest = script.Case("fuzz", case.name, [script.Line(text) for text in lines])
    linux, here = pair.run([smallest], AGAIN[-1])
    return smallest, linux[0], here[0]


def show(case, linux, here):
    print(f"case {case.name}")
    for number, line in enumerate(case.lines):
        one, other = (answers[number] if number < len(answers) else "nothing" for answers in (linux, here))
        print(f"{line.text} = {one}{'' if one == other else f' ! {other}'}")
    print(flush=True)


def search(pair, seed, seconds, count):
    begin = time.monotonic()
    number = 0
    found = {}
    while (count is None or number < count) and (seconds is None or time.monotonic() - begin < seconds):
        size = BATCH if count is None else min(BATCH, count - number)
        cases = [case_of(seed, number + n) for n in range(size)]
        number += size
        suspects = [case for case, _, _ in pair.differing(cases, FIRST)]
        for case, linux, here in pair.believed(suspects):
            # One of each kind is enough.
            kind = signature(case, linux, here)
            if kind in found:
                continue
            smallest, linux, here = shrink(pair, case, linux, here)
            show(smallest, linux, here)
            if first_difference(linux, here) is None:
                print(f"seen, but not again: {kind}")
            else:
                found[kind] = case
    return number, found


SEED = 514943892
LONG = os.environ.get("KNET_TEST_LONG") == "1"


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--seconds", type=float)
    words.add_argument("--count", type=int)
    words.add_argument("--seed", type=int)
    words.add_argument("--show", action="store_true")
    words.add_argument("case", nargs="*", help="names of cases, as other runners take them: here they all run")
    words = words.parse_args()
    # The short run is the same each time; the long one and --seed look for more.
    fresh = random.SystemRandom().randrange(1 << 32) if LONG else SEED
    seed = words.seed if words.seed is not None else fresh
    if words.show:
        for number in range(words.count or 1):
            show(case_of(seed, number), [], [])
        return
    reason = script.why_not()
    if reason:
        print(f"SKIP fuzz::all: {reason}")
        return
    seconds = words.seconds if words.seconds or words.count else 600 if LONG else 35
    folder = work_folder("fuzz")
    try:
        program = script.build(folder)
        with script.laboratory(program) as lab:
            before = lab.stats().get("flows_accepted", 0)
            pair = Pair(program, lab)
            number, found = search(pair, seed, seconds, words.count)
            accepted = lab.stats().get("flows_accepted", 0) - before
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{'FAIL' if found else 'PASS'} fuzz::seed {seed}: {number} scripts, {len(found)} kinds of difference")
    enough = accepted >= pair.connections > 0
    print(f"{'PASS' if enough else 'FAIL'} fuzz::accelerated: {accepted} connections accepted, at least {pair.connections} made")
    sys.exit(0 if enough and not found else 1)


if __name__ == "__main__":
    main()
