"""Short connections: made, 64 bytes each way, closed by the server."""

from functools import partial

from ..rows import AT_LEAST, Results
from ..world import both_worlds

ENDS = ("both", "one")
PARALLEL = (1, 50)


def seconds(options):
    return len(ENDS) * (20 + options.rounds * len(PARALLEL) * 2 * 3)


def run(options, progress):
    results = Results("connrate")
    for ends in ENDS:
        progress.step(20, f"connrate: start both worlds, {ends} accelerated")
        with both_worlds(options, ends=ends) as worlds:
            for turn in range(options.rounds):
                for parallel in PARALLEL:
                    for world in worlds:
                        progress.step(3, f"connrate: round {turn + 1} of {options.rounds}: {world.label}, {ends}, {parallel} at a time")
                        figures, calm = options.calm.measured(partial(connections, world, parallel, 200 if options.smoke else 2000))
                        for unit, value in figures.items():
                            results.add(f"{name(ends)}, {parallel} at a time", unit, world.label, value, calm)
            for world in worlds:
                world.describe(results, name(ends))
    results.compare(lambda case, unit: (3.0, None, AT_LEAST) if unit == "conn/s" and case == f"{name('both')}, 50 at a time" else None)
    return results.done()


def connections(world, parallel, milliseconds):
    """So many at a time for so long: their rate, and what one of them takes."""
    spent, busy = world.cpu_ns(), world.busy_ns()
    figures = world.client("connect", parallel, milliseconds)
    each = 1000 * max(1, figures["count"])
    return {
        "conn/s": figures["per_s"],
        "us CPU server": (world.cpu_ns() - spent) / each,
        "us CPU machine": (world.busy_ns() - busy) / each,
    }


def name(ends):
    return "both ends" if ends == "both" else "server only"
