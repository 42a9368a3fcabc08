"""One request at a time on one connection: how long the answer takes.

Most of what the kernel takes on an idle machine is the wake-up of a CPU that has halted; so it is measured once more while
idle-priority programs keep both from halting.
"""

import statistics
from functools import partial

from .. import machine
from ..rows import AT_MOST, KERNEL, KNET, Results
from ..world import both_worlds

# The case that is also measured against a kernel that does not halt.
AWAKE_SIZE, AWAKE = 64, "64 B, the kernel kept from halting"
SIZES = (1, 64, 1024, 16384)
UNITS = (("p50", "us p50"), ("p99", "us p99"), ("p999", "us p99.9"))


def seconds(options):
    return 20 + options.rounds * (len(SIZES) * 2 + 1) * 3


def run(options, progress):
    results = Results("pingpong")
    count = 200 if options.smoke else 20_000
    progress.step(20, "pingpong: start both worlds")
    with both_worlds(options, ends="both") as worlds:
        for turn in range(options.rounds):
            for size in SIZES:
                for world in worlds:
                    progress.step(3, f"pingpong: round {turn + 1} of {options.rounds}: {world.label}, {size} B")
                    many = count if size < 16384 else count // 4
                    figures, calm = options.calm.measured(partial(world.client, "ping", size, many))
                    for key, unit in UNITS:
                        results.add(f"{size} B", unit, world.label, figures[key] / 1000, calm)
                    if size == AWAKE_SIZE and world.label == KERNEL:
                        with machine.kept_awake():
                            figures = world.client("ping", size, count)
                        results.add(AWAKE, "us p50", KERNEL, figures["p50"] / 1000)
        for size in SIZES:
            for world in worlds:
                world.describe(results, f"{size} B")
    awake = {**results.raw.pop((AWAKE, "us p50")), KNET: results.raw[(f"{AWAKE_SIZE} B", "us p50")][KNET]}
    for (case, unit), values in results.raw.items():
        # The bounds of issue and design are those of both ends inline.
        limit = {"us p50": (6.0, 4.0, AT_MOST), "us p99": (25.0, None, AT_MOST)}.get(unit) if case == "64 B" else None
        results.absolute(case, unit, values, limit if options.progress == "inline" else None)
    ratio = statistics.median(awake[KNET]) / statistics.median(awake[KERNEL])
    limit = (0.12, None, AT_MOST) if options.progress == "inline" else None
    results.absolute(f"{AWAKE} (bound on the ratio)", "us p50", awake, limit, judged=ratio)
    return results.done()
