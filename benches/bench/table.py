"""The result as a table on stdout."""


def number(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def verdict(row):
    if row["noisy"] and row["pass"] is None:
        return "noisy"
    return {True: "pass", False: "FAIL", None: ""}[row["pass"]]


def show(rows):
    print(f"{'ratio':>7} {'kernel':>12} {'knet':>12} {'unit':14} {'spread':>6} {'bound':>7} {'goal':>6} {'':6} case")
    for row in rows:
        print(f"{number(row['ratio']):>7} {number(row['kernel']):>12} {number(row['knet']):>12} {row['unit']:14} {row['spread']:>6.2f} "
              f"{number(row['bound']):>7} {number(row['goal']):>6} {verdict(row):6} {row['suite']}: {row['case']}")
    for suite in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == suite]
        for progress in dict.fromkeys(row["progress"] for row in mine if "progress" in row):
            some = [row for row in mine if row.get("progress") == progress]
            shares = [row["served_by_stack"] for row in some if "served_by_stack" in row]
            calm = [row["calm"] for row in some if "calm" in row]
            alone = f"; on CPUs that nobody shared: {sum(calm) / len(calm):.0%} of measurements" if calm else ""
            served = f"; served by the stack: {min(shares):.0%} of connections" if shares else ""
            print(f"{suite}: progress {progress}; {'; '.join(some[0].get('threads', []))}{served}{alone}")
