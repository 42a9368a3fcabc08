"""CPU of a request: all threads of program and host, less the turns of the loop that found nothing; and what the machine did.

The loop counts what its turns that found nothing took (`turns_idle_ns`).

With both ends inline also the network's part of a request: what the server takes less what Redis takes over a transport that
costs nothing (`benches/c/stub.c`, preloaded into the same binary on the same CPU).
"""

import json
import os
import subprocess
import tempfile
from functools import partial

from ..rows import AT_MOST, KERNEL, KNET, Results
from ..world import SERVER_CPU, preloaded
from .redis import Redis

CLIENTS = 50
NETWORK = "both ends, network's part of a request"


def seconds(options):
    both = 20 + options.rounds * (2 + 2 * 5) if options.progress == "inline" else 0
    return 20 + options.rounds * 2 * 5 + both


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
                figures, calm = options.calm.measured(partial(one_round, world, requests))
                for case, value in figures.items():
                    results.add(case, "us a request", world.label, value, calm)
        for world in worlds:
            world.describe(results, "")
    finally:
        for world in worlds:
            world.close()
    if options.progress == "inline":
        network_part(results, options, progress, requests)
    results.compare(lambda *_: None)
    if options.progress == "inline":
        results.absolute(f"{NETWORK} (bound on the shim's own)", "us", results.raw[(NETWORK, "us CPU")], (1.5, 1.0, AT_MOST))
    return results.done()


def network_part(results, options, progress, requests):
    """CPU of the server a request, less Redis' own, with both ends accelerated."""
    progress.step(20, "cpu: start both worlds, both ends accelerated")
    worlds = []
    try:
        for label in (KERNEL, KNET):
            worlds.append(Redis(label, options, "both"))
        for turn in range(options.rounds):
            progress.step(2, f"cpu: round {turn + 1} of {options.rounds}: Redis without a network")
            own, _ = options.calm.measured(partial(redis_alone_us, requests))
            for world in worlds:
                progress.step(5, f"cpu: round {turn + 1} of {options.rounds}: {world.label}, both ends")
                figures, calm = options.calm.measured(partial(world.benchmark, CLIENTS, requests, 1, 3))
                spent = figures["server"]["us CPU"]
                results.add(NETWORK, "us CPU", world.label, max(0.0, spent - own), calm)
                results.add("both ends, all of a request", "us CPU", world.label, spent, calm)
        for world in worlds:
            world.describe(results, "both ends")
    finally:
        for world in worlds:
            world.close()


def redis_alone_us(requests):
    """CPU time that SET and GET take Redis itself, the mean of both."""
    with tempfile.TemporaryDirectory(prefix="knet-bench-") as folder:
        path = os.path.join(folder, "redis.sock")
        words = ["taskset", "-c", str(SERVER_CPU), "redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
                 "--dir", folder, "--logfile", os.path.join(folder, "redis.log")]
        env = {**os.environ, "LD_PRELOAD": preloaded("stub"), "STUB_CLIENTS": str(CLIENTS), "STUB_REQUESTS": str(requests)}
        done = subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        if done.returncode != 0 or not done.stdout.startswith("{"):
            raise AssertionError(f"Redis without a network ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
        figures = json.loads(done.stdout)
    return (figures["SET"] + figures["GET"]) / 2 / 1000


def one_round(world, requests):
    """What a request takes the server's side and the machine."""
    stats = world.lab.stats() if world.label == KNET else {}
    cpu, busy = world.cpu_ns(), world.busy_ns()
    world.benchmark(CLIENTS, requests, 1, 3)
    cpu, busy = world.cpu_ns() - cpu, world.busy_ns() - busy
    idle = world.lab.stats()["turns_idle_ns"] - stats["turns_idle_ns"] if world.label == KNET else 0
    per = 1000 * 2 * requests
    return {
        "server's side, less idle turns": (cpu - idle) / per,
        "server's side, as it is": cpu / per,
        "whole machine, client too": busy / per,
    }
