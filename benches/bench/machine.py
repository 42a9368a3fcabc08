"""What /proc says of processes and of the machine."""

import contextlib
import os
import re
import subprocess
import sys

MIB = 1 << 20


AUTOGROUP = "/proc/sys/kernel/sched_autogroup_enabled"


@contextlib.contextmanager
def ahead_of_others():
    """Inside, what this process starts runs before other programs of the machine: nice -20, for which the kernel must weigh
    threads and not sessions. Needs root."""
    grouped = None
    with contextlib.suppress(OSError), open(AUTOGROUP, encoding="ascii") as file:
        grouped = file.read()
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        weigh(grouped and "0")
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        weigh(grouped)


@contextlib.contextmanager
def kept_awake():
    """Inside, no CPU halts: a program that only runs when nobody else wants to (SCHED_IDLE) spins on each."""
    spinners = []
    try:
        for cpu in sorted(os.sched_getaffinity(0)):
            words = ["taskset", "-c", str(cpu), "chrt", "-i", "0", sys.executable, "-c", "while True: pass"]
            spinners.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def weigh(grouped):
    """Whether the scheduler weighs sessions; None: this kernel does not know them."""
    if grouped is not None:
        with open(AUTOGROUP, "w", encoding="ascii") as file:
            file.write(grouped)


def threads(pid):
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")] if pid else []
    except OSError:
        return []


def cpu_ns(pid):
    """CPU time of all threads of a process so far."""
    total = 0
    for thread in threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


def busy_ns():
    """CPU time that the whole machine has not idled away so far."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def proportional(pids):
    """Memory of several processes, what they share counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            total += int(re.search(r"^Pss:\s+(\d+)", file.read(), re.M)[1]) * 1024
    return total


def placement(pid):
    """Names of a process's threads with the CPUs each may use."""
    found = []
    for thread in threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm", encoding="ascii") as file:
            cpus = ",".join(map(str, sorted(os.sched_getaffinity(thread))))
            found.append(f"{file.read().strip()} on CPU {cpus}")
    return found


def last_level_cache():
    """Bytes of the largest cache."""
    sizes = [0]
    for index in range(8):
        path = f"/sys/devices/system/cpu/cpu0/cache/index{index}/size"
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            text = file.read().strip()
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]])
    return max(sizes)


def available():
    """Bytes of memory that can be had."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"^MemAvailable:\s+(\d+)", file.read(), re.M)[1]) * 1024
