"""Short connections: made, 64 bytes each way, closed by the server."""

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
                        spent, busy = world.cpu_ns(), world.busy_ns()
                        figures = world.client("connect", parallel, 200 if options.smoke else 2000)
                        case = f"{name(ends)}, {parallel} at a time"
                        results.add(case, "conn/s", world.label, figures["per_s"])
                        results.add(case, "us CPU server", world.label, (world.cpu_ns() - spent) / 1000 / max(1, figures["count"]))
                        results.add(case, "us CPU machine", world.label, (world.busy_ns() - busy) / 1000 / max(1, figures["count"]))
            for world in worlds:
                world.describe(results, name(ends))
    results.compare(lambda case, unit: (3.0, None, AT_LEAST) if unit == "conn/s" and case == f"{name('both')}, 50 at a time" else None)
    return results.done()


def name(ends):
    return "both ends" if ends == "both" else "server only"
