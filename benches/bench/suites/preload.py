"""`true` with and without the library in front."""

import os
import subprocess
import time

from ..rows import KERNEL, KNET, Results
from ..world import ROOT


def seconds(options):
    return 1 + options.rounds * 60 * 2 * 0.003


def run(options, progress):
    progress.step(seconds(options), "preload: true, with and without")
    library = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"), "libknet_frame.so")
    if not os.path.exists(library):
        raise AssertionError(f"{library} is not built")
    results = Results("preload")
    for _ in range(20 if options.smoke else 60 * options.rounds):
        for side, more in ((KERNEL, {}), (KNET, {"LD_PRELOAD": library})):
            begin = time.perf_counter()
            subprocess.run(["/bin/true"], check=True, env={**os.environ, **more})
            results.add("true", "ms", side, (time.perf_counter() - begin) * 1000)
    results.differ("true", "ms", results.raw[("true", "ms")], 2)
    results.describe("true", progress="none: no socket", threads=["wherever it runs"])
    return results.done()
