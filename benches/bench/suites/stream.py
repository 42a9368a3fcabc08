"""Bulk: 1 and 8 streams of 64 KiB writes, both directions, MTU 1500 and 9000, against the kernel with and without offloads."""

from functools import partial

from ..rows import AT_LEAST, KERNEL, KNET, Results
from ..world import World

STREAMS = (1, 8)
MTUS = (1500, 9000)
WAYS = (("send", "client to server"), ("receive", "server to client"))


def seconds(options):
    return len(MTUS) * (30 + options.rounds * len(STREAMS) * len(WAYS) * 3 * 3)


def run(options, progress):
    results = Results("stream")
    for mtu in MTUS:
        one_mtu(options, progress, results, mtu)
    results.compare(lambda case, _: bound(case) if options.progress == "inline" else None)
    return results.done()


def one_mtu(options, progress, results, mtu):
    progress.step(30, f"stream: start three worlds, MTU {mtu}")
    worlds = []
    try:
        for label, offloads in ((KERNEL, True), (KERNEL, False), (KNET, False)):
            worlds.append((World(label, options, ends="both", mtu=mtu, offloads=offloads).serve(), offloads))
        for turn in range(options.rounds):
            for streams in STREAMS:
                for verb, way in WAYS:
                    for world, offloads in worlds:
                        progress.step(3, f"stream: round {turn + 1} of {options.rounds}: {world.label}, MTU {mtu}, {streams} x {way}")
                        figures, calm = options.calm.measured(partial(world.client, verb, streams, 300 if options.smoke else 2000))
                        for against in ("offloads", "no offloads"):
                            if world.label == KNET or (against == "offloads") == offloads:
                                results.add(f"MTU {mtu}, {streams} x {way}, kernel with {against}", "Mbit/s", world.label, figures["mbit_s"], calm)
        for world, _ in worlds:
            world.describe(results, f"MTU {mtu}")
    finally:
        for world, _ in worlds:
            world.close()


def bound(case):
    if "no offloads" in case:
        return None
    if ", 8 x" in case:
        return (1.2, None, AT_LEAST)
    return (1.5, 2.0, AT_LEAST) if "MTU 1500" in case else (2.5, 4.0, AT_LEAST)
