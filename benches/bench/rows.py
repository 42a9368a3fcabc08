"""Rows of the result: medians, ratio, spread, verdict."""

import statistics

KERNEL, KNET = "kernel", "knet"
# A row whose spread is above is judged neither way.
NOISY = 0.3
# The shim must reach at least, or must not exceed, a bound.
AT_LEAST, AT_MOST = True, False


def spread(values):
    """The larger of all sides' (max - min) / median."""
    found = [0.0]
    for side in values.values():
        middle = statistics.median(side) if side else 0
        if middle:
            found.append((max(side) - min(side)) / middle)
    return max(found)


class Results:
    """Raw values by case and unit, and the rows that come of them."""

    def __init__(self, suite):
        self.suite = suite
        self.raw = {}
        self.facts = {}
        self.calm = {}
        self.rows = []

    def add(self, case, unit, side, value, calm=None):
        """One measurement more; `calm`: whether nobody shared the CPUs with it."""
        self.raw.setdefault((case, unit), {}).setdefault(side, []).append(value)
        if calm is not None:
            self.calm.setdefault((case, unit), []).append(calm)

    def describe(self, case, **facts):
        """Facts that each row of a case states: progress, threads, served_by_stack. A share is kept as the worst one."""
        known = self.facts.setdefault(case, {})
        if "served_by_stack" in facts and "served_by_stack" in known:
            facts["served_by_stack"] = min(facts["served_by_stack"], known["served_by_stack"])
        known.update(facts)

    def compare(self, bounds):
        """One row a case and unit: the ratio of the medians. `bounds(case, unit)` gives (bound, goal, AT_LEAST or AT_MOST) on the
        ratio, or None."""
        for (case, unit), values in self.raw.items():
            if KERNEL not in values or KNET not in values:
                continue
            kernel, knet = (statistics.median(values[side]) for side in (KERNEL, KNET))
            ratio = knet / kernel if kernel else None
            self.judge(case, unit, kernel, knet, ratio, values, bounds(case, unit), ratio)

    def absolute(self, case, unit, values, limit=None, judged=None):
        """One row whose bound is on the shim's own figure (or on `judged`)."""
        medians = {side: statistics.median(values[side]) if values.get(side) else None for side in (KERNEL, KNET)}
        if judged is None:
            judged = medians[KNET]
        kernel, knet = medians[KERNEL], medians[KNET]
        self.judge(case, unit, kernel, knet, knet / kernel if kernel and knet is not None else None, values, limit, judged)

    def differ(self, case, unit, values, most):
        """One row whose bound is on how much more the shim takes than the kernel. Its spread is no reason to doubt it."""
        kernel, knet = (statistics.median(values[side]) for side in (KERNEL, KNET))
        self.row(f"{case} (bound: kernel + {most:g})", unit, kernel, knet, None, most, None, knet - kernel <= most, 0.0, values)

    def judge(self, case, unit, kernel, knet, ratio, values, limit, judged):
        bound, goal, sense = limit or (None, None, AT_LEAST)
        good = bound is not None and judged is not None and (judged >= bound if sense == AT_LEAST else judged <= bound)
        self.row(case, unit, kernel, knet, ratio, bound, goal, good, spread(values), values)

    def row(self, case, unit, kernel, knet, ratio, bound, goal, good, spread_, values):
        noisy = spread_ > NOISY
        self.rows.append({
            "suite": self.suite, "case": case, "unit": unit, "kernel": kernel, "knet": knet, "ratio": ratio, "spread": spread_,
            "bound": bound, "goal": goal, "noisy": noisy, "pass": None if bound is None or noisy else bool(good), "raw": values,
        })

    def done(self):
        """The rows, each with what is known of its case; a share below 1 fails."""
        for row in self.rows:
            facts = next((facts for case, facts in self.facts.items() if row["case"].startswith(case)), {})
            row.update(facts)
            calm = self.calm.get((row["case"], row["unit"]))
            if calm:
                row["calm"] = sum(calm) / len(calm)
            if row.get("served_by_stack", 1.0) < 1.0:
                row["pass"] = False
        return self.rows


def merge(runs):
    """The rows of a suite that was run up to three times: of each the first run in which it was not noisy. A row with a bound that
    is noisy in three runs fails."""
    merged = []
    for at, row in enumerate(runs[0]):
        tries = [run[at] for run in runs if at < len(run) and run[at]["case"] == row["case"]]
        good = next((again for again in tries if again["bound"] is None or not again["noisy"]), tries[-1])
        if good["noisy"] and good["bound"] is not None and len(tries) >= 3:
            good["pass"] = False
        merged.append(good)
    return merged
