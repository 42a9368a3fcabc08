"""The payload stage against none: one bulk stream each way and a ping-pong, the kernels on the CPU (gpu.mode cpu).

No row of it says anything of a GPU: what runs on one is measured by `gpu-bench` on a machine that has one.
"""

import json
import os
import random

from ..rows import KNET, Results
from ..world import World

RULES = 1000
# Name in the table, and the pipeline.
STAGES = (("no stage", None), (f"pattern, {RULES} rules", "pattern"), ("stats", "stats"), ("crc32c", "crc32c"), ("chacha20", "chacha20"))
SMOKE = STAGES[:2]
WAYS = (("send", "client to server"), ("receive", "server to client"))
SIZE = 1024


def stages(options):
    return SMOKE if options.smoke else STAGES


def seconds(options):
    return len(stages(options)) * (12 + options.rounds * 10)


class Staged(World):
    """A server behind a stage that runs on the CPU; a stage that hides is at both ends."""

    def __init__(self, options, kernel):
        super().__init__(KNET, options, ends="both")
        try:
            if kernel:
                self.use(kernel)
            self.serve()
        except BaseException:
            self.close()
            raise

    def use(self, kernel):
        rule = {"kernel": kernel}
        if kernel == "pattern":
            rule["patterns_file"] = self.file("rules", "\n".join(words(RULES)))
        if kernel == "chacha20":
            rule["key_file"] = self.file("key", "5a" * 32)
        for end in ("server", "client") if kernel == "chacha20" else ("server",):
            path = os.path.join(self.lab.state, f"{end}.conf")
            with open(path, encoding="ascii") as file:
                config = json.load(file)
            config["gpu"] = {"enabled": True, "mode": "cpu", "pipeline": [rule]}
            with open(path, "w", encoding="ascii") as file:
                json.dump(config, file)

    def file(self, name, text):
        path = os.path.join(self.lab.work, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path


def words(count):
    """Rules that nothing matches by chance."""
    letters = random.Random(1)
    return ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=12)) for _ in range(count)]


def run(options, progress):
    results = Results("gpu")
    progress.step(12 * len(stages(options)), "gpu: start a server for each stage")
    worlds = []
    try:
        for name, kernel in stages(options):
            worlds.append((name, Staged(options, kernel)))
        for turn in range(options.rounds):
            for name, world in worlds:
                progress.step(10, f"gpu: round {turn + 1} of {options.rounds}: {name}, on the CPU")
                # The client's host of the round before has ended since, and its counters with it.
                world.before, world.made = world.served(), 0
                for verb, way in WAYS:
                    rate = world.client(verb, 1, 300 if options.smoke else 2000)["mbit_s"]
                    results.add(f"{name} (on the CPU), 1 x {way}", "Mbit/s", KNET, rate)
                figures = world.client("ping", SIZE, 200 if options.smoke else 10_000)
                for key, unit in (("p50", "us p50"), ("p99", "us p99")):
                    results.add(f"{name} (on the CPU), ping-pong {SIZE} B", unit, KNET, figures[key] / 1000)
                world.describe(results, f"{name} (on the CPU)")
        share(results, stages(options))
    finally:
        for _, world in worlds:
            world.close()
    return results.done()


def share(results, wanted):
    """Each figure, and behind it the same as a multiple of what there is without a stage."""
    none = f"{wanted[0][0]} (on the CPU)"
    for (case, unit), values in list(results.raw.items()):
        results.absolute(case, unit, values)
        name = next(name for name, _ in wanted if case.startswith(name))
        if name != wanted[0][0]:
            plain = results.raw[none + case[len(f"{name} (on the CPU)"):], unit][KNET]
            times = [with_stage / without for with_stage, without in zip(values[KNET], plain)]
            results.absolute(f"{case}: {unit} against no stage", "x", {KNET: times})
