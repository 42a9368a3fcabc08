#!/usr/bin/env python3
"""Plants faults in a copy of the sources and demands that the scripts notice: who watches the watchmen.

usage: mutants.py [--all] [NAME...]

Each file of tests/conformance/mutants is a patch with a line `caught by: FAMILY::CASE...`. Without names, three of them are
taken by the day of the year, all of them with --all or KNET_TEST_LONG=1. The copy and its build stay in target/mutants, so
that another run builds only what changed.
"""

import datetime
import os
import shutil
import subprocess
import sys
import time

from harness import ROOT

PATCHES = os.path.join(ROOT, "tests", "conformance", "mutants")
COPY = os.path.join(ROOT, "target", "mutants")
A_DAY = 3
ENVIRONMENT = {**os.environ, "KNET_BUILD": "debug", "CARGO_TERM_COLOR": "never"}
ENVIRONMENT.pop("CARGO_TARGET_DIR", None)


def read(name):
    """What the fault is, and the cases that must notice it."""
    with open(os.path.join(PATCHES, name + ".patch"), encoding="utf-8") as file:
        what = file.readline().strip()
        head, _, cases = file.readline().partition(": ")
    assert head == "caught by" and cases.split(), f"{name} does not say what catches it"
    return what, cases.split()


def names():
    return sorted(name.removesuffix(".patch") for name in os.listdir(PATCHES) if name.endswith(".patch"))


def of_the_day(every):
    day = datetime.date.today().timetuple().tm_yday
    return [every[(day * A_DAY + n) % len(every)] for n in range(A_DAY)]


def copy_sources():
    """The tree as it is, without what is built; the build of the dependencies is taken over once."""
    os.makedirs(COPY, exist_ok=True)
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout.split(b"\0")
    present = [os.fsdecode(file) for file in files if file and os.path.isfile(os.path.join(os.fsencode(ROOT), file))]
    for file in present:
        here, there = os.path.join(ROOT, file), os.path.join(COPY, file)
        if not same(here, there):
            os.makedirs(os.path.dirname(there), exist_ok=True)
            shutil.copy(here, there)
    built = os.path.join(COPY, "target", "debug")
    if not os.path.isdir(built):
        os.makedirs(os.path.dirname(built), exist_ok=True)
        own = ("knet", "frame", "libknet", "incremental", "examples")
        shutil.copytree(os.path.join(ROOT, "target", "debug"), built, symlinks=True, ignore=lambda _, found: [one for one in found if one.startswith(own)])


def same(here, there):
    try:
        with open(here, "rb") as one, open(there, "rb") as other:
            return one.read() == other.read()
    except FileNotFoundError:
        return False


def patch(name, *options):
    with open(os.path.join(PATCHES, name + ".patch"), encoding="utf-8") as file:
        done = subprocess.run(["patch", "-p1", "--no-backup-if-mismatch", "-r", "-", *options], cwd=COPY, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise AssertionError(f"the patch does not fit the sources any more: {done.stdout}")


def build():
    done = subprocess.run(["cargo", "build", "--offline", "--workspace", "--quiet"], cwd=COPY, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise AssertionError(f"it does not build: {done.stdout[-1500:]}")


def scripts(cases):
    """The output of the scripts in the copy."""
    return subprocess.run(
        [os.path.join(COPY, "tests", "apps", "scripts.py"), *cases], cwd=COPY, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout


def try_out(name):
    """What noticed the fault; raises when nothing did."""
    _, cases = read(name)
    patch(name)
    try:
        build()
        output = scripts(cases)
    finally:
        patch(name, "--reverse")
    noticed = [line.split(":")[0:4] for line in output.splitlines() if line.startswith("FAIL ") and not line.startswith(("FAIL scripts::kernel::", "FAIL scripts::kernel:"))]
    if "SKIP" in output:
        return None
    if not noticed:
        raise AssertionError(f"nothing notices it: {output[-800:]}")
    return len(noticed)


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    every = names()
    if words:
        chosen = words
    elif "--all" in sys.argv or os.environ.get("KNET_TEST_LONG") == "1":
        chosen = every
    else:
        chosen = of_the_day(every)
        print(f"mutants of today: {', '.join(chosen)}", flush=True)
    copy_sources()
    failed = False
    for name in every:
        try:
            patch(name, "--dry-run")
        except AssertionError as error:
            failed = True
            print(f"FAIL mutants::{name}: {error}", flush=True)
    build()
    output = scripts(sorted({case for name in chosen for case in read(name)[1]}))
    sound = "FAIL" not in output
    print(f"{'PASS' if sound else 'FAIL'} mutants::none: the unchanged copy passes{'' if sound else output[-800:]}", flush=True)
    failed |= not sound
    for name in chosen:
        begin = time.monotonic()
        try:
            noticed = try_out(name)
            verdict = "PASS" if noticed else "SKIP"
            print(f"{verdict} mutants::{name}: {read(name)[0]}{'' if noticed else ': needs root'} ({time.monotonic() - begin:.0f} s)", flush=True)
        except AssertionError as error:
            failed = True
            print(f"FAIL mutants::{name}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
