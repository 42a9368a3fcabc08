#!/usr/bin/env python3
"""Short connections, so many that anything they left behind would show: what programs and hosts hold is looked at ten times.

100 000 of them, and with KNET_TEST_LONG=1 five million, at a server alone and at both ends.
"""

import os
import subprocess
import time

from harness import ROOT, SERVER, Lab, main, reached, served, wait_for

LONG = os.environ.get("KNET_TEST_LONG") == "1"
SHORT = int(os.environ.get("KNET_TEST_SHORT", 5_000_000 if LONG else 100_000))
SAMPLES = 10
PARALLEL = 50
# Held at a time, and how long they may take to end: what is lost of so many FINs is sent again after a second, at most twice.
HELD = 9_000
ENDED_S = 10
# Programs one after another, and where their host is looked at. 1600 of them left 28 KiB in the first half and nothing in the other.
PROGRAMS = 200
WARM = 50
PORT = 7379
# How much more there may be at the end than after two tenths, by a part of the name. A leak of 16 bytes a connection would be 1.3 MB,
# and 64 MB in a long run. What is mapped comes in arenas of the allocator; frames under way come and go, a burst in each direction
# and at each end; the folders have files of programs that come and go.
ROOM = (("KiB mapped", 65_536), ("KiB", 4_096 if LONG else 1_024), ("buffers", 128), ("files", 3))
# The last ones are in TIME-WAIT for twice msl_time, which is 1 s in a lab.
TIME_WAIT_S = 3


def program(lab, name):
    """The benchmark's own client or server."""
    path = os.path.join(lab.work, name)
    subprocess.run(["cc", "-O2", "-Wall", "-o", path, os.path.join(ROOT, "benches", "c", f"{name}.c")], check=True)
    return path


def processes(lab):
    """Who is there for the whole run: its name with its end, and its pid."""
    found = {}
    for end in "sc":
        pids = subprocess.run(["ip", "netns", "pids", f"knet-{lab.name}-{end}"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for pid in pids.split():
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                name = file.read().strip()
            name = "host" if name.startswith("knetd") else name
            if name in ("server", "client", "host"):
                found[f"{name} ({'server' if end == 's' else 'client'} side)"] = pid
    return found


def field(pid, file, name):
    with open(f"/proc/{pid}/{file}", encoding="ascii") as text:
        return int(next(line for line in text if line.startswith(name + ":")).split()[1])


def sample(lab, watched):
    """What is held, by name: KiB where the name says so."""
    held = {}
    for name, pid in watched.items():
        held[f"{name}: descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        held[f"{name}: KiB resident"] = field(pid, "status", "VmRSS")
        held[f"{name}: KiB of its own"] = field(pid, "status", "RssAnon")
        held[f"{name}: KiB mapped"] = field(pid, "status", "VmSize")
        held[f"{name}: threads"] = field(pid, "status", "Threads")
    stats = lab.stats()
    held["port: buffers in use"] = stats["port.buffers"] - stats["port.buffers_free"]
    held["rings: KiB"] = stats["ring_bytes"] >> 10
    held["send buffers: KiB in use"] = (stats["send_buffer_bytes"] - stats["send_buffer_bytes_free"]) >> 10
    held["flows"] = live_flows(stats)
    folders = [os.path.join(lab.state, name) for name in ("run-s", "run-c")]
    held["run folders: files"] = sum(len(files) + len(below) for folder in folders for _, below, files in os.walk(folder))
    return held


def calm(lab):
    """TIME-WAIT is over, and the rings that were kept for the next connection are given back, which takes 5 s."""
    time.sleep(TIME_WAIT_S)
    wait_for("the memory of rings is given back", lambda: lab.stats()["ring_bytes"] < 64 << 10 or time.sleep(0.2), 20)


def nothing_grows(lab, count, programs):
    """One client makes all of them. `programs` is how many there are for the whole run: hosts too."""
    server, client = program(lab, "server"), program(lab, "client")
    process = lab.start("server", server, SERVER, str(PORT), log="server.log")
    wait_for("the server listens", lambda: lab.stats().get("listeners_made", 0) > 0, 15)
    command = lab.command("client", client, SERVER, str(PORT), "short", str(PARALLEL), str(count // SAMPLES))
    samples, made, begin = [], 0, time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asked:
        for _ in range(SAMPLES):
            asked.stdin.write("more\n")
            asked.stdin.flush()
            word, number = asked.stdout.readline().split()
            assert word == "made"
            made += int(number)
            if LONG or len(samples) in (1, SAMPLES - 1):
                calm(lab)
            watched = processes(lab)
            assert len(watched) == programs, watched
            samples.append(sample(lab, watched))
        asked.stdin.close()
    print(f"{made} short connections in {time.monotonic() - begin:.0f} s, looked at {SAMPLES} times", flush=True)
    for name in samples[-1]:
        print(f"  {name}: {' '.join(str(held[name]) for held in samples)}", flush=True)
    assert made >= count, made
    # The first tenths warm up: tables and buffers reach their size. Both looks are at a host that is calm.
    for name, last in samples[-1].items():
        room = next((room for part, room in ROOM if part in name), 0)
        assert last <= samples[1][name] + room, f"{name}: {samples[1][name]} after two tenths, {last} at the end"
    lab.end(process)


def programs_leave_nothing(lab):
    """One program after another, at a host that another one keeps alive."""
    server, client = program(lab, "server"), program(lab, "client")
    process = lab.start("server", server, SERVER, str(PORT), log="server.log")
    wait_for("the server listens", lambda: lab.stats().get("listeners_made", 0) > 0, 15)
    stays = subprocess.Popen(
        lab.command("client", client, SERVER, str(PORT), "hold", "1", "64"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with stays:
        assert stays.stdout.readline().startswith("ready")
        (host,) = [pid for name, pid in processes(lab).items() if name == "host (client side)"]
        samples = []
        for number in range(1, PROGRAMS + 1):
            made = subprocess.run(
                lab.command("client", client, SERVER, str(PORT), "short", "4", "20"), input="more\n", stdout=subprocess.PIPE, text=True,
                check=True, timeout=30)
            assert made.stdout.startswith("made "), made.stdout
            if number % WARM == 0:
                time.sleep(TIME_WAIT_S)
                samples.append({
                    "KiB of its own": field(host, "status", "RssAnon"), "descriptors": len(os.listdir(f"/proc/{host}/fd")),
                    "threads": field(host, "status", "Threads"),
                })
        stays.stdin.close()
    print(f"the host after each {WARM} programs: {samples}", flush=True)
    room = {"KiB of its own": 256, "descriptors": 2, "threads": 0}
    for name, last in samples[-1].items():
        assert last <= samples[0][name] + room[name], samples
    lab.end(process)


def live_flows(stats):
    """Those of all hosts together."""
    return stats["flows_accepted"] + stats.get("flows_connected", 0) - stats.get("flows_freed", 0)


def all_end_with_their_program(lab):
    """The program ends, and with it its connections, all in one instant; the server closes its own then."""
    server, client = program(lab, "server"), program(lab, "client")
    process = lab.start("server", server, SERVER, str(PORT), log="server.log")
    wait_for("the server listens", lambda: lab.stats().get("listeners_made", 0) > 0, 15)
    command = lab.command("client", client, SERVER, str(PORT), "hold", str(HELD), "64")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holds:
        assert holds.stdout.readline().startswith("ready")
        stats = lab.stats()
        assert live_flows(stats) == 2 * HELD, stats
        holds.stdin.close()
        holds.wait(30)
    begin = time.monotonic()
    wait_for("all have ended", lambda: live_flows(lab.stats()) == 0 or time.sleep(0.1), ENDED_S)
    stats = lab.stats()
    told = {name: stats[name] for name in ("mends_put_off", "peers_asked", "time_outs") if name in stats}
    print(f"{HELD} connections had ended {time.monotonic() - begin:.1f} s after their program: {told}", flush=True)
    lab.end(process)


class Labs:
    """A lab of its own for each case: their ports differ."""

    def __init__(self):
        self.lab = None

    @property
    def processes(self):
        return self.lab.processes if self.lab else []

    def up(self, device):
        self.close()
        self.lab = Lab(device)
        return self.lab

    def close(self):
        if self.lab:
            self.lab.close()
        self.lab = None


def at_the_server_alone(labs):
    lab = labs.up("af_packet")
    with lab.inside(), open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as file:
        file.write("1024 65535")
    with served(lab, SHORT):
        nothing_grows(lab, SHORT, programs=3)


def at_both_ends(labs):
    lab = labs.up("vhost")
    with served(lab, SHORT), reached(lab, SHORT):
        nothing_grows(lab, SHORT, programs=4)


def one_program_after_another(labs):
    lab = labs.up("vhost")
    with served(lab, PROGRAMS), reached(lab, PROGRAMS):
        programs_leave_nothing(lab)


def many_connections_end_together(labs):
    lab = labs.up("vhost")
    with served(lab, HELD), reached(lab, HELD):
        all_end_with_their_program(lab)


if __name__ == "__main__":
    main("short_connections", [at_the_server_alone, at_both_ends, one_program_after_another, many_connections_end_together], Labs, Labs.close)
