"""CPU of a request: all threads of program and host, less the turns of the loop that found nothing; and what the machine did.

A turn that finds nothing costs what it costs at rest: CPU time of a busy-polling host without work, divided by its turns.
"""

import time

from .. import machine
from ..rows import KERNEL, KNET, Results
from .redis import Redis

CLIENTS = 50


def seconds(options):
    return 20 + options.rounds * 2 * 5


def run(options, progress):
    results = Results("cpu")
    requests = 500 if options.smoke else options.requests
    progress.step(20, "cpu: start both worlds")
    worlds = []
    try:
        for label in (KERNEL, KNET):
            worlds.append(Redis(label, options, "one"))
        for turn in range(options.rounds):
            for world in worlds:
                progress.step(5, f"cpu: round {turn + 1} of {options.rounds}: {world.label}")
                one_round(results, world, requests)
        for world in worlds:
            world.describe(results, "")
    finally:
        for world in worlds:
            world.close()
    results.compare(lambda *_: None)
    return results.done()


def one_round(results, world, requests):
    idle = idle_turn_ns(world) if world.label == KNET else 0.0
    stats = world.lab.stats() if world.label == KNET else {}
    cpu, busy = world.cpu_ns(), world.busy_ns()
    world.benchmark(CLIENTS, requests, 1, 3)
    cpu, busy = world.cpu_ns() - cpu, world.busy_ns() - busy
    turns = world.lab.stats().get("turns_idle", 0) - stats.get("turns_idle", 0) if world.label == KNET else 0
    per = 1000 * 2 * requests
    results.add("server's side, less idle turns", "us a request", world.label, max(0.0, cpu - turns * idle) / per)
    results.add("server's side, as it is", "us a request", world.label, cpu / per)
    results.add("whole machine, client too", "us a request", world.label, busy / per)


def idle_turn_ns(world):
    """What a turn without work costs: nobody asks anything, and the host spins until it sleeps."""
    host = world.find("s", "knetd")
    before, turns = machine.cpu_ns(host), world.lab.stats().get("turns_idle", 0)
    time.sleep(0.2)
    # The question itself wakes the host, which then spins for a while.
    used, more = machine.cpu_ns(host) - before, world.lab.stats().get("turns_idle", 0) - turns
    return used / more if more else 0.0
