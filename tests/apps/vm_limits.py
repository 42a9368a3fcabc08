#!/usr/bin/env python3
"""100 000 connections of one process, in a virtual machine in which its limit may be raised: tests/apps/limits.py there.

It takes a quarter of an hour and more (881 s beside other tests), and so it is for `scripts/test.sh --long` only (whose limit is
2800 s).
"""

import os
import time

from harness import ROOT
from vm_machine import Machine, main_if_there

WANTED = int(os.environ.get("KNET_TEST_HELD", 100_000))
PROFILE = os.environ.get("KNET_BUILD", "release")


class Limits(Machine):
    script = "limits.sh"
    memory_mb = 7168

    def prepare(self):
        super().prepare()
        with open(os.path.join(self.work, "extra", "limits.env"), "w", encoding="ascii") as file:
            file.write(f"export ROOT='{ROOT}' KNET_BUILD={PROFILE} KNET_TEST_HELD={WANTED} KNET_TEST_SLOW=5\n")


def a_process_holds_100_000_connections(machine):
    machine.said("VM memory", 2_400)
    for line in machine.lines:
        if line.startswith(("VM limit", "VM memory")) or " descriptors, " in line or " connections in " in line:
            print(f"note: {line.removeprefix('VM ')}", flush=True)
    done = [line for line in machine.lines if line.startswith("PASS limits::one_descriptor_a_connection")]
    assert len(done) == 1, machine.lines[-40:]
    machine.qemu.wait(60)
    print(f"note: in all {time.monotonic() - machine.began:.0f} s", flush=True)


if __name__ == "__main__":
    main_if_there("vm_limits", [a_process_holds_100_000_connections], Limits)
