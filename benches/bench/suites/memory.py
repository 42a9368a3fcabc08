"""Memory of an idle connection: after a request and an answer of 1 KiB, and after the sweep of idle memory."""

import time

from .. import machine
from ..rows import AT_MOST, Results
from ..world import both_worlds
from .idle import Holder

KIB = 1024
# The host gives pages of connections back that have been idle for 10 s (src/stack/sweep.rs); it looks every 5 s.
SWEEP_S = 25


def seconds(options):
    return 20 + options.rounds * 2 * (5 + count(options) / 5000 + wait(options))


def count(options):
    return 200 if options.smoke else options.connections


def wait(options):
    return 1 if options.smoke else SWEEP_S


def used(world):
    """What program and host of the server's side hold, shared memory counted once."""
    return machine.proportional([pid for pid in (world.server, world.find("s", "knetd")) if pid])


def run(options, progress):
    results = Results("memory")
    many = count(options)
    for turn in range(options.rounds):
        # Fresh processes each time: nobody gives memory back that he had at his peak.
        with both_worlds(options, flows=many) as worlds:
            for world in worlds:
                progress.step(5 + many / 5000 + wait(options),
                              f"memory: round {turn + 1} of {options.rounds}: {many} connections on the {world.label}")
                # Tables and code that the first connections need are nobody's memory.
                Holder(world, 20, KIB).close()
                time.sleep(0.2)
                before = used(world)
                holder = Holder(world, many, KIB)
                results.add("after 1 KiB each way", "KiB", world.label, (used(world) - before) / many / KIB)
                time.sleep(wait(options))
                results.add("after the sweep", "KiB", world.label, (used(world) - before) / many / KIB)
                holder.close()
                for case in ("after 1 KiB", "after the sweep"):
                    world.describe(results, case)
    limits = {"after 1 KiB each way": (24.0, None, AT_MOST), "after the sweep": (6.0, None, AT_MOST)}
    for (case, unit), values in results.raw.items():
        results.absolute(case, unit, values, limits[case])
        results.rows[-1]["case"] = f"{case}, {many} connections, each"
        results.facts[results.rows[-1]["case"]] = results.facts.get(case, results.facts.get("after 1 KiB", {}))
    return results.done()


