"""Whether somebody else shares the cores.

On a rented machine two guests may sit on the two threads of one core. The neighbour then takes up to half of what the core can do,
no counter inside says so, and a program that never halts loses more by it than one that waits for wake-ups. `benches/c/pace.c`
shows it: a fixed mix of instructions runs at its full pace or at about half of it.

Both sides are treated alike: a measurement begins when all CPUs keep their pace, and counts as calm when they still do at its end;
else it is taken again, as far as the patience reaches. The figures themselves decide nothing.
"""

import os
import subprocess
import time

from .world import program

# A CPU that makes less of its best pace is shared.
SHARED_BELOW = 0.88
TAKES = 3
PAUSE_S = 0.05
SMALLEST_PATIENCE_S = 0.25


class Calm:
    """What each CPU's best pace was, and how long a measurement may still wait."""

    def __init__(self, patience, cpus=None, paces=None):
        self.cpus = sorted(os.sched_getaffinity(0)) if cpus is None else cpus
        self.paces = paces or self.measure
        self.most = self.patience = patience
        self.best = [0.0] * len(self.cpus)
        if patience:
            for _ in range(20):
                self.undisturbed()
                time.sleep(PAUSE_S)

    def measure(self):
        """Steps a microsecond of each CPU, all of them at once."""
        words = [program("pace", "-pthread"), *map(str, self.cpus)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        return [float(word) for word in done.stdout.split()]

    def undisturbed(self):
        """Whether every CPU keeps its pace now."""
        now = self.paces()
        self.best = [max(pair) for pair in zip(self.best, now)]
        return all(pace >= SHARED_BELOW * best for pace, best in zip(now, self.best))

    def wait(self, until):
        """Waits for undisturbed CPUs; whether there are."""
        while not self.undisturbed():
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE_S)
        return True

    def measured(self, take):
        """What `take()` gives, taken while nobody shares the CPUs if that can be had, and whether it was (None: nobody looked)."""
        if not self.most:
            return take(), None
        until = time.monotonic() + self.patience
        for _ in range(TAKES):
            begun_well = self.wait(until)
            value = take()
            calm = begun_well and self.undisturbed()
            if calm or time.monotonic() >= until:
                break
        if calm:
            self.patience = min(self.most, self.patience * 2)
        else:
            # Somebody who stays is not waited for again and again.
            self.patience = max(SMALLEST_PATIENCE_S, self.patience / 2)
        return value, calm
