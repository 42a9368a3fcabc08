"""1 000 open connections that say nothing: CPU time of program and host; then the first request after idling."""

import os
import subprocess
import time

from ..rows import AT_MOST, KERNEL, KNET, Results
from ..world import PORT, SERVER, both_worlds, program

CONNECTIONS = 1000
GAP_S = 0.1


def seconds(options):
    return 40 + options.rounds * 2 * (span(options) + 2 + 20 * GAP_S)


def span(options):
    return 1 if options.smoke else 30 / options.rounds


class Holder:
    """A client that holds connections open."""

    def __init__(self, world, count, size):
        command = world.command(program("client"), SERVER, str(PORT), "hold", str(count), str(size))
        env = {**os.environ, "BENCH_LOCAL": ",".join(world.locals)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        line = self.process.stdout.readline()
        if line.split()[:1] != ["ready"]:
            raise AssertionError(f"{world.label}: {count} connections could not be made: {line!r}")
        world.made += count

    def ping(self):
        """Microseconds of one request on the next connection."""
        self.process.stdin.write("ping\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) / 1000

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def run(options, progress):
    results = Results("idle")
    count = 50 if options.smoke else CONNECTIONS
    pings = 5 if options.smoke else 20
    progress.step(40, "idle: start three worlds")
    with both_worlds(options, idle="adaptive") as (kernel, knet), both_worlds(options, idle="spin") as (_, spinning):
        holders = {world: Holder(world, count, 64) for world in (kernel, knet, spinning)}
        case = f"{count} open connections"
        for turn in range(options.rounds):
            for world in (kernel, knet):
                progress.step(span(options), f"idle: round {turn + 1} of {options.rounds}: {world.label} at rest")
                time.sleep(0.5)
                before, begin = world.cpu_ns(), time.monotonic()
                time.sleep(span(options))
                used = (world.cpu_ns() - before) / 1e7 / (time.monotonic() - begin)
                results.add(case, "% of a core", world.label, used)
            for world, wait in ((kernel, GAP_S), (knet, GAP_S), (spinning, GAP_S)):
                progress.step(2 + pings * GAP_S, f"idle: round {turn + 1} of {options.rounds}: first request on the {world.label}")
                times = []
                for _ in range(pings):
                    time.sleep(wait)
                    times.append(holders[world].ping())
                name = "first request after idling" if world is not spinning else "the same, lcore busy polling"
                results.add(name, "us p50", world.label, sorted(times)[len(times) // 2])
        for world in (kernel, knet):
            for name in (case, "first request"):
                world.describe(results, name)
        spinning.describe(results, "the same")
        for holder in holders.values():
            holder.close()
    verdicts(results, case)
    return results.done()


def verdicts(results, case):
    results.absolute(case, "% of a core", results.raw[(case, "% of a core")], (1.0, None, AT_MOST))
    after = results.raw[("first request after idling", "us p50")]
    busy = results.raw[("the same, lcore busy polling", "us p50")]
    middle = {name: sorted(values[KNET])[len(values[KNET]) // 2] for name, values in (("after", after), ("busy", busy))}
    results.absolute("first request after idling (bound: busy polling + 100)", "us p50", after, (100.0, None, AT_MOST),
                     judged=middle["after"] - middle["busy"])
    results.absolute("the same, lcore busy polling", "us p50", {KERNEL: after[KERNEL], KNET: busy[KNET]})


__all__ = ["Holder", "run", "seconds"]
