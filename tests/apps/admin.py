#!/usr/bin/env python3
"""What an operator sees of real programs: two hosts over a unix socket, no privilege."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import termios
import time

from folder import work_folder
from harness import CLIENT, ROOT, SERVER, Lab, main, wait_for

BUILD = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"))
KNETCTL = os.path.join(BUILD, "knetctl")
PORT = 6379


class Admin:
    def __init__(self):
        # KNET_TEST_PROGRESS=inline: the host is inside the program.
        self.lab = Lab(device="unix", progress=os.environ.get("KNET_TEST_PROGRESS", "dedicated"))
        self.server = self.lab.start(
            "server", "redis-server", "--port", str(PORT), "--bind", SERVER, "127.0.0.1", "--protected-mode", "no", "--save",
            "", "--dir", self.lab.work, log="redis.log",
        )
        wait_for("redis answers", lambda: "PONG" in self.cli("ping"), 20)
        self.pid = self.find("redis-server")

    def cli(self, *words):
        return self.lab.client("timeout", "10", "redis-cli", "-h", SERVER, *words, check=False)

    def find(self, name):
        """The program that the host of the server serves."""
        programs = self.ask("status", "--json")[0]["programs"]
        pids = [pid for program in programs for pid in program["processes"]]
        for pid in pids:
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                if file.read().strip() == name:
                    return pid
        raise AssertionError(f"{name} is not among {programs}")

    def environment(self, end="s"):
        state = self.lab.state
        conf = os.path.join(state, "server.conf" if end == "s" else "client.conf")
        return {**os.environ, "KNET_RUN_DIR": os.path.join(state, f"run-{end}"), "KNET_CONF": conf}

    def run(self, *words, end="s", **options):
        return subprocess.run(
            [KNETCTL, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
            env=self.environment(end), check=False, **options,
        )

    def ask(self, *words, end="s"):
        done = self.run(*words, end=end)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout) if "--json" in words else done.stdout


def stack(admin):
    """What the stack of the server's host counts."""
    (host,) = admin.ask("stats", "-a", "--json").values()
    return host["stack"]


def held_sockets(admin):
    """Connections that some program has. Others may wait for a peer whose host went with its program (design D7)."""
    return [socket for socket in admin.ask("ss", "--json") if socket["processes"]]


def ss_names_owner_and_descriptor(admin):
    sockets = admin.ask("ss", "-a", "--json")
    listener = next(socket for socket in sockets if socket["state"] == "LISTEN")
    assert (listener["local"], listener["local_port"], listener["processes"]) == (SERVER, PORT, [admin.pid]), listener
    link = os.readlink(f"/proc/{admin.pid}/fd/{listener['fd']}")
    assert link.startswith("socket:"), link
    # It closes when its stdin ends: with the host inside, a killed program sends no FIN (design D7).
    holds = f'import socket, sys; s = socket.create_connection(("{SERVER}", {PORT})); sys.stdin.read(); s.close()'
    held = subprocess.Popen(admin.lab.command("client", sys.executable, "-c", holds), stdin=subprocess.PIPE)
    held.log = os.devnull
    admin.lab.processes.append(held)
    def connections(end):
        done = admin.run("ss", "--json", end=end)
        # 69: the client's host is not there yet.
        found = json.loads(done.stdout) if done.returncode != 69 else []
        return [socket for socket in found if socket["state"] == "ESTAB"]

    (peer,) = wait_for("it is connected", lambda: connections("c"))
    (flow,) = wait_for("it is accepted", lambda: [socket for socket in connections("s") if socket["fd"]])
    assert flow["peer"] == CLIENT and flow["processes"] == [admin.pid] and flow["fd"] not in (None, listener["fd"]), flow
    assert peer["made_by"] == "connect" and peer["local_port"] == flow["peer_port"], peer
    assert f"(\"redis-server\",pid={admin.pid},fd={flow['fd']})" in admin.ask("ss"), admin.ask("ss")
    held.stdin.close()
    wait_for("it is gone", lambda: not held_sockets(admin))


def why_tells_each_socket(admin):
    told = admin.ask("why", admin.pid, "--json")
    assert told["accelerated"], told
    by_path = {}
    for socket in told["sockets"]:
        by_path.setdefault(socket["path"], []).append(socket)
    (ours,) = [socket for socket in by_path["stack"] if "LISTEN" in socket["socket"]]
    assert ours["socket"] == f"TCP {SERVER}:{PORT} LISTEN", ours
    assert len(by_path["kernel"]) == 1, told
    (loopback,) = by_path["kernel"]
    assert loopback["socket"] == f"TCP 127.0.0.1:{PORT} LISTEN" and "loopback" in loopback["reason"], loopback


def started(admin, command, **environment):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**admin.environment(), **environment})
    admin.lab.processes.append(process)
    process.log = os.devnull
    process.stdout.readline()
    return process


LISTENS = "import socket,sys,time; s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); print(flush=True); time.sleep(60)"


def why_explains_programs_that_are_not_preloaded(admin):
    plain = started(admin, [sys.executable, "-c", LISTENS])
    told = admin.ask("why", plain.pid, "--json")
    assert not told["accelerated"] and "LD_PRELOAD does not name" in told["reason"], told
    assert told["sockets"][0]["path"] == "kernel", told
    gone = started(admin, [sys.executable, "-c", LISTENS], LD_PRELOAD="/no/such/libknet_frame.so")
    told = admin.ask("why", gone.pid, "--json")
    assert "/no/such/libknet_frame.so, which is not there" in told["reason"], told
    source, program = os.path.join(admin.lab.work, "static.c"), os.path.join(admin.lab.work, "static")
    with open(source, "w", encoding="ascii") as file:
        file.write('#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts(""); fflush(stdout); pause(); }\n')
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    static = started(admin, [KNETCTL, "run", "--", program])
    assert "linked statically" in admin.ask("why", static.pid, "--json")["reason"]
    for process in (plain, gone, static):
        admin.lab.end(process)
    missing = admin.run("why", 4_000_000)
    assert missing.returncode == 66, missing


def why_finds_the_host_in_the_run_folder_of_the_program(admin):
    """Whoever asks has another run folder, and the program may have another root."""
    run = os.path.join(admin.lab.work, "run-own")
    os.makedirs(run, mode=0o700)
    changed = {"KNET_RUN_DIR": run, "KNET_HOST": os.path.join(BUILD, "knetd")}
    # The wire has an end for each of the two hosts of the lab only.
    conf = os.path.join(admin.lab.work, "own.conf")
    with open(conf, "w", encoding="ascii") as file:
        file.write(f'{{"interface": {{"vdevs": ["knet_unix,path={admin.lab.work}/wire-own"], "ip": "10.77.1.1"}},'
                   f' "common": {{"linger_s": 0}}}}')
    listens = LISTENS.replace("'0.0.0.0', 0", "'10.77.1.1', 80")
    process = started(admin, [sys.executable, "-c", listens], LD_PRELOAD=os.path.join(BUILD, "libknet_frame.so"), KNET_CONF=conf, **changed)
    told = admin.ask("why", process.pid, "--json")
    assert told["accelerated"] and told["sockets"][0]["path"] == "stack", told
    admin.lab.end(process)
    # One that has written over its environment, as Redis does, and is not preloaded.
    # The last fields but two of stat(5): where the environment begins and ends.
    writes = LISTENS.replace("import socket,sys,time;", (
        "import ctypes,socket,sys,time; first, last = map(int, open('/proc/self/stat').read().rsplit(')', 1)[1].split()[47:49]);"
        " ctypes.memset(first, 0, last - first);"))
    process = started(admin, [sys.executable, "-c", writes])
    told = admin.ask("why", process.pid, "--json")
    assert not told["accelerated"] and "written its title over its environment" in told["reason"], told
    admin.lab.end(process)


def why_knows_set_user_id(admin):
    if os.getuid() != 0:
        return "needs root to make a program of another group"
    program = os.path.join(admin.lab.work, "privileged")
    shutil.copy("/bin/sleep", program)
    os.chown(program, 0, 65534)
    os.chmod(program, 0o2755)
    process = subprocess.Popen([program, "60"], env={**admin.environment(), "LD_PRELOAD": os.path.join(BUILD, "libknet_frame.so")})
    process.log = os.devnull
    admin.lab.processes.append(process)
    wait_for("it runs", lambda: os.readlink(f"/proc/{process.pid}/exe") == program)
    assert "set-group-id" in admin.ask("why", process.pid, "--json")["reason"]
    admin.lab.end(process)
    return None


def why_reads_the_config(admin):
    conf = os.path.join(admin.lab.work, "narrow.conf")
    with open(admin.environment()["KNET_CONF"], encoding="utf-8") as file:
        text = file.read()
    library = os.path.join(BUILD, "libknet_frame.so")
    for common, part in (('"programs": ["redis-server"]', "programs in"), ('"ports": [1]', "ports does not list")):
        with open(conf, "w", encoding="utf-8") as file:
            file.write(text.replace('"common": {', f'"common": {{"accelerate": {{{common}}}, ', 1))
        run = os.path.join(admin.lab.work, "run-narrow")
        os.makedirs(run, mode=0o700, exist_ok=True)
        changed = {"KNET_CONF": conf, "KNET_RUN_DIR": run}
        process = started(admin, [sys.executable, "-c", LISTENS], LD_PRELOAD=library, KNET_HOST=os.path.join(BUILD, "knetd"), **changed)
        done = subprocess.run(
            [KNETCTL, "why", str(process.pid), "--json"], env={**os.environ, **changed}, stdout=subprocess.PIPE, check=True, timeout=60
        )
        told = json.loads(done.stdout)
        assert part in told["reason"] + told["sockets"][0]["reason"], told
        admin.lab.end(process, signal.SIGKILL)
    with open(conf, "w", encoding="utf-8") as file:
        file.write(text.replace('"common": {', '"comon": {', 1))
    process = started(admin, [sys.executable, "-c", LISTENS], LD_PRELOAD=library, KNET_HOST=os.path.join(BUILD, "knetd"), KNET_CONF=conf)
    told = admin.ask("why", process.pid, "--json")
    assert "comon" in told["reason"], told
    admin.lab.end(process, signal.SIGKILL)


def dpdks_own_client_reads_the_telemetry(admin):
    client = shutil.which("dpdk-telemetry.py")
    if not client:
        return "dpdk-telemetry.py is not installed"
    admin.cli("set", "key", "value")
    commands = ["/", "/info", "/ethdev/stats,0", "/knet/stack/tcp_stat", f"/knet/stack/net_stat,{admin.pid} 0 0",
                f"/knet/stack/epoll_stat,{admin.pid} 0 10 0 10"]
    done = subprocess.run(
        [client, "-f", "knet", "-i", "1"], input="\n".join([*commands, "quit"]) + "\n", text=True, stdout=subprocess.PIPE,
        timeout=30, check=True, env={**os.environ, "RUNTIME_DIRECTORY": os.path.join(admin.lab.state, "run-s")},
    )
    answers = {}
    for line in done.stdout.splitlines():
        answers.update(json.loads(line))
    assert answers["/info"]["pid"] == admin.ask("status", "--json")[0]["process"], answers
    assert answers["/knet/stack/tcp_stat"]["Accepts"] >= 1, answers
    listener = [row for row in answers["/knet/stack/net_stat"].values() if row["state"] == "LISTEN"]
    assert listener[0]["lPort"] == PORT, answers
    (epoll,) = answers["/knet/stack/epoll_stat"].values()
    assert os.readlink(f"/proc/{admin.pid}/fd/{epoll['osFd']}") == "anon_inode:[eventpoll]", epoll
    fds = [name.removeprefix("fd_") for name in epoll["details"]]
    assert fds and all(os.readlink(f"/proc/{admin.pid}/fd/{fd}").startswith("socket:") for fd in fds), epoll
    assert all(row["expectEvents"] & 1 for row in epoll["details"].values()), epoll
    return None


def metrics_on_a_unix_socket(admin):
    path = os.path.join(admin.lab.work, "metrics.sock")
    metrics(admin, "unix", f"unix:{path}", path)
    wait_for("the socket is gone with its host", lambda: not os.path.exists(path))


def metrics_on_loopback(admin):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    metrics(admin, "loopback", f"127.0.0.1:{port}", ("127.0.0.1", port))


def metrics(admin, name, at, address):
    conf, run = os.path.join(admin.lab.work, f"{name}.conf"), os.path.join(admin.lab.work, f"run-{name}")
    with open(conf, "w", encoding="ascii") as file:
        file.write(f'{{"interface": {{"vdevs": ["knet_unix,path={admin.lab.work}/wire-{name}"], "ip": "10.77.1.1"}},'
                   f' "common": {{"metrics": "{at}", "linger_s": 0}}}}')
    os.makedirs(run, mode=0o700)
    listens = LISTENS.replace("'0.0.0.0', 0", "'10.77.1.1', 80")
    changed = {"KNET_CONF": conf, "KNET_RUN_DIR": run, "KNET_HOST": os.path.join(BUILD, "knetd")}
    process = started(admin, [sys.executable, "-c", listens], LD_PRELOAD=os.path.join(BUILD, "libknet_frame.so"), **changed)

    def get(request):
        peer = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        peer.settimeout(10)
        peer.connect(address)
        peer.sendall(request)
        parts = []
        while part := peer.recv(65536):
            parts.append(part)
        return b"".join(parts).decode().split("\r\n\r\n", 1)

    def listens_there():
        with contextlib.suppress(OSError):
            return get(b"GET / HTTP/1.1\r\n\r\n")
        return None

    wait_for("it listens", listens_there)
    head, body = get(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 ") and "application/openmetrics-text; version=1.0.0" in head, head
    assert body.endswith("# EOF\n"), body[-100:]
    types, samples = {}, {}
    for line in body.splitlines()[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, name
            types[name] = kind
        else:
            name, value = line.split()
            # Of each lcore there is a sample of its own.
            name = re.sub(r'\{lcore="\d+"\}$', "", name)
            samples[name] = samples.get(name, 0) + int(value)
    for name in samples:
        family = name.removesuffix("_total")
        assert types[family] == ("counter" if name.endswith("_total") else "gauge"), name
    assert samples["knet_lcore_listeners_made_total"] == 1 and samples["knet_up"] == 1, samples
    with open(os.path.join(ROOT, "conf", "grafana-dashboard.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    shown = {name for panel in dashboard["panels"] for target in panel["targets"] for name in re.findall(r"knet_\w+", target["expr"])}
    assert len(shown) > 15 and not shown - set(samples), shown - set(samples)
    assert get(b"GET /nothing HTTP/1.1\r\n\r\n")[0].startswith("HTTP/1.1 404 ")
    assert get(b"POST /metrics HTTP/1.1\r\n\r\n")[0].startswith("HTTP/1.1 405 ")
    admin.lab.end(process)


def capturing(admin, path, *words):
    """A capture that has begun: its file has the blocks before the first frame."""
    socket_path = admin.ask("status", "--json")[0]["socket"]
    process = subprocess.Popen(
        [KNETCTL, "capture", "--socket", socket_path, "-w", path, "--json", *words], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )
    process.log = os.devnull
    admin.lab.processes.append(process)
    first = path if "-C" not in words else path.replace(".pcapng", "_00001.pcapng")
    wait_for("it captures", lambda: os.path.exists(first) and os.path.getsize(first) > 0)
    return process


def tshark(path, *words):
    done = subprocess.run(["tshark", "-r", path, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def tshark_reads_a_capture_and_agrees_with_the_counters(admin):
    if not shutil.which("tshark"):
        return "tshark is not installed"
    path = os.path.join(admin.lab.work, "all.pcapng")
    process = capturing(admin, path)
    before = stack(admin)
    for number in range(20):
        assert admin.cli("set", f"key{number}", "x" * 3000).strip() == "OK"
    try:
        wait_for("all is closed", lambda: not held_sockets(admin))
    except AssertionError as error:
        raise AssertionError(f"{error}: {admin.ask('ss', '-ai')}\n{admin.run('ss', '-ai', end='c').stdout}") from error
    after = stack(admin)
    process.send_signal(signal.SIGINT)
    counts = json.loads(process.communicate(timeout=20)[0])
    assert process.returncode == 0 and counts["dropped"] == 0 and counts["written"] == counts["admitted"] == counts["seen"], counts
    fields = ["frame.time_epoch", "frame.packet_flags_direction", "frame.len", "tcp.flags", "tcp.srcport", "_ws.malformed"]
    rows = tshark(path, "-T", "fields", *[part for field in fields for part in ("-e", field)])
    assert len(rows) == counts["written"], (len(rows), counts)
    assert not any(row[5] for row in rows), rows
    inbound = [row for row in rows if row[1] in ("1", "0x00000001")]
    outbound = [row for row in rows if row[1] in ("2", "0x00000002")]
    # The capture began before the counters were read and ended after.
    assert len(inbound) >= after["rx_frames"] - before["rx_frames"] > 100, (len(inbound), before, after)
    assert len(outbound) >= after["tx_frames"] - before["tx_frames"] > 60, (len(outbound), before, after)
    syns = [row for row in inbound if row[3] and int(row[3], 16) & 0x12 == 0x02]
    assert len(syns) == after["syns_received"] - before["syns_received"] == 20, (len(syns), before, after)
    stamps = [row[0] for row in rows]
    assert all(len(stamp.split(".")[1]) == 9 for stamp in stamps) and stamps == sorted(stamps), stamps
    assert abs(float(stamps[-1]) - time.time()) < 60, stamps[-1]
    return None


def capture_filters_cuts_and_ends(admin):
    path = os.path.join(admin.lab.work, "few.pcapng")
    process = capturing(admin, path, "-s", "60", "-c", "5", "tcp", "src", "port", str(PORT), "and", "greater", "60")
    for _ in range(10):
        admin.cli("get", "key0")
    counts = json.loads(process.communicate(timeout=20)[0])
    assert process.returncode == 0 and counts["written"] == 5 and counts["seen"] > counts["admitted"], counts
    if shutil.which("tshark"):
        rows = tshark(path, "-T", "fields", "-e", "frame.cap_len", "-e", "tcp.srcport")
        assert len(rows) == 5 and all(int(cut) <= 60 and port == str(PORT) for cut, port in rows), rows
    done = admin.run("capture", "-w", path, "-d", "1", "--json", "tcp", "port", "9")
    assert done.returncode == 0 and json.loads(done.stdout)["written"] == 0, done.stdout
    assert admin.run("capture", "-w", path, "tcp", "nonsense").returncode == 64
    assert admin.run("capture", "-w", "/no/such/folder/file").returncode == 74


def a_capture_goes_on_in_other_files(admin):
    folder = os.path.join(admin.lab.work, "rotated")
    os.mkdir(folder)
    process = capturing(admin, os.path.join(folder, "big.pcapng"), "-C", "1", "-W", "2")
    begin = time.monotonic()
    names = []
    while "big_00004.pcapng" not in names:
        assert admin.cli("set", "key0", "x" * 100_000).strip() == "OK"
        names = sorted(os.listdir(folder))
        assert len(names) <= 2 and time.monotonic() - begin < 60, names
    process.send_signal(signal.SIGINT)
    counts = json.loads(process.communicate(timeout=20)[0])
    assert process.returncode == 0 and counts["dropped"] == 0, counts
    left = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    assert len(left) == 2, left
    assert all(os.path.getsize(path) <= 1 << 20 for path in left), [os.path.getsize(path) for path in left]
    assert os.path.getsize(left[0]) > (1 << 20) - 70_000, "the next frame did not fit"
    if shutil.which("tshark"):
        stamps = [float(row[0]) for path in left for row in tshark(path, "-T", "fields", "-e", "frame.time_epoch")]
        assert 100 < len(stamps) < counts["written"] and stamps == sorted(stamps), (len(stamps), counts)
    assert admin.run("capture", "-w", os.path.join(folder, "x"), "-W", "2").returncode == 64
    assert admin.run("capture", "-w", "/no/such/folder/file", "-C", "1").returncode == 74


def capture_loses_frames_and_not_traffic_when_the_disk_is_slow(admin):
    path = os.path.join(admin.lab.work, "slow.pcapng")
    os.mkfifo(path)
    socket_path = admin.ask("status", "--json")[0]["socket"]
    process = subprocess.Popen(
        [KNETCTL, "capture", "--socket", socket_path, "-w", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    process.log = os.devnull
    admin.lab.processes.append(process)
    pipe = os.open(path, os.O_RDONLY)
    os.read(pipe, 1024)
    busy = admin.run("capture", "-w", "/dev/null", "-c", "1")
    assert busy.returncode == 69 and "another capture" in busy.stdout, busy.stdout
    # Nobody reads: 12 MiB are more than all buffers on the way.
    before = stack(admin)
    value = "x" * (1 << 20)
    for number in range(12):
        done = admin.lab.client("sh", "-c", f"head -c {len(value)} /dev/zero | redis-cli -h {SERVER} -x set big{number}", seconds=30)
        assert done.strip() == "OK", done
    assert stack(admin)["rx_bytes"] - before["rx_bytes"] > 12 << 20
    process.send_signal(signal.SIGINT)
    while os.read(pipe, 1 << 20):
        pass
    os.close(pipe)
    counts = json.loads(process.communicate(timeout=20)[0])
    assert counts["dropped"] > 0 and counts["written"] + counts["dropped"] == counts["admitted"], counts
    again = admin.run("capture", "-w", os.path.join(admin.lab.work, "again.pcapng"), "-d", "1", "--json")
    assert again.returncode == 0, again.stdout


def a_capture_without_room_counts_what_is_in_its_file(admin):
    path = os.path.join(admin.lab.work, "cut.pcapng")
    socket_path = admin.ask("status", "--json")[0]["socket"]
    process = subprocess.Popen(
        ["prlimit", "--fsize=20000", KNETCTL, "capture", "--socket", socket_path, "-w", path, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    process.log = os.devnull
    admin.lab.processes.append(process)
    wait_for("the capture begins", lambda: os.path.exists(path) and os.path.getsize(path) > 0)
    admin.lab.client("redis-cli", "-h", SERVER, "-r", "300", "ping", seconds=30)
    said, complaint = process.communicate(timeout=20)
    assert process.returncode == 74 and "the capture is cut" in complaint, (said, complaint)
    with open(path, "rb") as file:
        stream = file.read()
    at, frames = 0, 0
    while at + 8 <= len(stream):
        kind, length = struct.unpack_from("<II", stream, at)
        at += length
        frames += kind == 6 and at <= len(stream)
    assert json.loads(said)["written"] == frames > 0, (said, frames)


class Terminal:
    """knetctl top in a pseudo-terminal, and what it has shown."""

    def __init__(self, admin, rows, columns):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns = columns
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [KNETCTL, "top"], stdin=self.slave, stdout=self.slave, stderr=subprocess.DEVNULL, env=admin.environment())
        self.process.log = os.devnull
        admin.lab.processes.append(self.process)
        self.seen = b""

    def shows(self, *parts):
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        return all(part.encode() in self.seen for part in parts)

    def press(self, keys):
        self.seen = b""
        os.write(self.master, keys)

    def rows(self):
        """The rows of the screen that was drawn last and whole, without control sequences."""
        screen = self.seen.split(b"\x1b[H")[-2]
        rows = [re.sub(rb"\x1b\[[?0-9]*[A-Za-z]", b"", row).decode() for row in screen.split(b"\r\n")]
        assert all(len(row) <= self.columns for row in rows), rows
        return rows

    def end(self):
        os.write(self.master, b"q")
        assert self.process.wait(10) == 0
        assert self.shows("\x1b[?1049l", "\x1b[?25h")
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is as it was"
        os.close(self.master)
        os.close(self.slave)


def top_on_a_terminal(admin):
    """In a pseudo-terminal of 24 by 100: it draws, follows keys, and leaves the terminal as it was."""
    top = Terminal(admin, 24, 100)
    wait_for("the first screen", lambda: top.shows("\x1b[?1049h", "every 1 s", f"redis-server {admin.pid}", "  link ", "turns with work"))
    assert not termios.tcgetattr(top.slave)[3] & termios.ICANON, "the terminal is raw"
    top.press(b"+")
    wait_for("a longer interval", lambda: top.shows("every 2 s"))
    top.press(b"-")
    wait_for("a shorter one", lambda: top.shows("every 1 s"))
    admin.cli("get", "key0")
    wait_for("a rate", lambda: top.shows("accepted/s") and re.search(rb" [1-9]\d* accepted/s", top.seen))
    assert len(top.rows()) <= 24
    top.end()


def top_on_a_small_terminal(admin):
    """10 by 40: what does not fit in a row goes on in the next one, and what is below comes up by keys."""
    top = Terminal(admin, 10, 40)
    wait_for("a screen", lambda: top.seen.count(b"\x1b[H") > 1 if top.shows("0 lines above") else False)
    assert len(top.rows()) == 10 and not top.shows(f"redis-server {admin.pid}"), top.rows()
    top.press(b"\x1b[B")
    wait_for("it moves down", lambda: top.shows("1 lines above"))
    for _ in range(40):
        os.write(top.master, b"j")
        time.sleep(0.02)
    wait_for("the last line", lambda: top.shows(f"redis-server {admin.pid}", " 0 below"))
    top.end()


def others_may_ask_a_service_for_numbers_and_not_for_payloads(admin):
    if os.getuid() != 0:
        return "needs root to be somebody else"
    folder = work_folder("service")
    os.chmod(folder, 0o755)
    conf, path = os.path.join(folder, "conf"), os.path.join(folder, "knetd.sock")
    with open(conf, "w", encoding="ascii") as file:
        file.write(f'{{"interface": {{"vdevs": ["knet_unix,path={folder}/wire"], "ip": "10.77.1.1"}}, "common": {{"mode": 1}}}}')
    # A copy: the build folder may be closed to others.
    tool = os.path.join(folder, "knetctl")
    shutil.copy(KNETCTL, tool)
    host = subprocess.Popen(
        [os.path.join(BUILD, "knetd"), "--conf", conf, "--socket", path], stderr=subprocess.DEVNULL,
        env={**os.environ, "KNET_RUN_DIR": folder},
    )
    host.log = os.devnull
    admin.lab.processes.append(host)
    wait_for("it listens", lambda: os.path.exists(path))
    # As for a member of the group that the socket belongs to.
    os.chmod(path, 0o666)

    def ask(*words, **options):
        return subprocess.run([tool, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False, **options)

    other = {"user": 65534, "group": 65534, "extra_groups": []}
    numbers = ask("status", "--socket", path, "--json", **other)
    assert numbers.returncode == 0 and json.loads(numbers.stdout)[0]["private"] is False, numbers
    words = ("capture", "--socket", path, "-w", "/dev/null", "-c", "1")
    payloads = ask(*words, **other)
    assert payloads.returncode == 69 and "only root and the host's own user" in payloads.stdout, payloads
    ours = ask(*words[:-2], "-d", "1")
    assert ours.returncode == 0 and "frames captured" in ours.stdout, ours
    admin.lab.end(host)
    shutil.rmtree(folder)
    return None


def trace_tells_what_happens_to_a_connection(admin):
    script = f"""import socket, sys
s = socket.create_connection(("{SERVER}", {PORT}))
print(s.getsockname()[1], flush=True)
sys.stdin.readline()
s.sendall(b"PING\\r\\n"); s.recv(100); s.close()
"""
    client = subprocess.Popen(
        admin.lab.command("client", sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    client.log = os.devnull
    admin.lab.processes.append(client)
    peer = f"{CLIENT}:{client.stdout.readline().strip()}"
    trace = subprocess.Popen([KNETCTL, "trace", "--json", peer], stdout=subprocess.PIPE, text=True, env=admin.environment())
    trace.log = os.devnull
    admin.lab.processes.append(trace)
    assert json.loads(trace.stdout.readline())["event"] == "begin"
    # Whatever happens from now on is told.
    client.stdin.write("\n")
    client.stdin.flush()
    events = [json.loads(line) for line in trace.communicate(timeout=30)[0].splitlines()]
    assert trace.returncode == 0 and client.wait(10) == 0, events
    segments = [event for event in events if event["event"] in ("in", "out")]
    assert [event["facts"]["payload"] for event in segments if event["event"] == "in" and event["facts"]["payload"]] == [6], events
    assert [event["facts"]["payload"] for event in segments if event["event"] == "out" and event["facts"]["payload"]] == [7], events
    assert any("F" in event["facts"]["flags"] for event in segments if event["event"] == "in"), events
    told = [(event["event"], event["text"]) for event in events]
    for kind, start in (("read", "the program read 6 bytes, 0 left"), ("write", "the program wrote 7 bytes"),
                        ("state", "ESTAB -> CLOSE-WAIT"), ("stage", "owned -> orphan"), ("end", "")):
        assert any(one == kind and text.startswith(start) for one, text in told), (kind, told)
    # In the order in which it happened: what came is read, the answer is written, then it leaves.
    place = lambda kind, payload: next(number for number, event in enumerate(events) if event["event"] == kind
                                       and (payload is None or event["facts"]["payload"] == payload))
    assert place("in", 6) < place("read", None) < place("write", None) < place("out", 7) < place("end", None), told
    assert [event["at_ns"] for event in events[1:]] == sorted(event["at_ns"] for event in events[1:])
    done = admin.run("trace", peer)
    assert done.returncode == 66, done


def collect_gathers_what_helps_and_nothing_secret(admin):
    path = os.path.join(admin.lab.work, "all.tar")
    conf = os.path.join(admin.lab.work, "secret.conf")
    with open(conf, "w", encoding="ascii") as file:
        file.write('{"interface": {"ip": "10.77.0.1"}, "gpu": {"key_file": "/hush/hush", "password": "open sesame"}}')
    done = admin.run("collect", "-o", path, "--conf", conf, "--json")
    assert done.returncode == 0, done.stdout
    assert os.stat(path).st_mode & 0o777 == 0o600
    names = json.loads(done.stdout)["files"]
    with tarfile.open(path) as archive:
        members = {member.name.removeprefix("knet-collect/"): archive.extractfile(member).read() for member in archive}
    assert set(names) == set(members), (names, set(members))
    for name in ("versions.txt", "config/knet_comm.conf", "config/check.json", "hardware/proc/cpuinfo", "hosts/0/status.json",
                 "hosts/0/stats.json", "hosts/0/sockets.json", "hosts/0/latency.json"):
        assert members[name], name
    assert json.loads(members["hosts/0/status.json"])["programs"], members["hosts/0/status.json"]
    assert b"10.77.0.1" in members["config/knet_comm.conf"]
    whole = b"".join(members.values())
    assert b"open sesame" not in whole and b"/hush/hush" not in members["config/knet_comm.conf"]
    assert admin.run("collect", "-o", "/no/such/folder/x.tar").returncode == 73


def bench_measures_what_the_stack_serves(admin):
    """Its trial starts hosts of its own; beside it, an echo service on the server's stack is measured from the client's."""
    if admin.lab.device != "unix":
        return "needs no device"
    folder = os.path.join(admin.lab.work, "bench")
    os.makedirs(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KNET_")}
    environment["TMPDIR"] = folder
    killed = subprocess.Popen([KNETCTL, "bench", "-d", "60"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    def of_the_trial():
        """What its two ends and their hosts have in their environment is the folder."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if f"TMPDIR={folder}\0".encode() in file.read():
                    found.append(int(pid))
        return found

    wait_for("a trial has begun", lambda: len(of_the_trial()) >= 4)
    # Not its group: whoever is killed alone takes its ends along, and they their hosts.
    killed.kill()
    killed.wait()
    wait_for("nothing of it is left", lambda: not of_the_trial())
    done = subprocess.run([KNETCTL, "bench", "-d", "1", "-c", "2", "--json"], env=environment, stdout=subprocess.PIPE, text=True,
                          timeout=120, check=True)
    rows = json.loads(done.stdout)
    assert [row["path"] for row in rows] == ["knet over a unix socket", "kernel, loopback"], rows
    for row in rows:
        assert row["round_trips"] > 0 and 0 < row["p50_ns"] <= row["p99_ns"] <= row["max_ns"], row
        assert row["bulk_bytes_per_second"] > 0, row
    assert not os.listdir(folder), "the folder of the killed one is gone as well"
    serving = admin.lab.start("server", KNETCTL, "bench", "--serve", f"{SERVER}:7777", log="bench.log")
    wait_for("it answers", lambda: "answers at" in open(serving.log, encoding="utf-8").read(), 20)
    before = stack(admin)["flows_accepted"]
    one = json.loads(admin.lab.client(KNETCTL, "bench", f"{SERVER}:7777", "-d", "1", "-c", "3", "--json"))
    assert one["round_trips"] > 0 and one["target"] == f"{SERVER}:7777", one
    assert stack(admin)["flows_accepted"] - before == 4, "three that ask, and one in bulk"
    admin.lab.end(serving)
    refused = admin.run("bench", "127.0.0.1:1", "-d", "1")
    assert refused.returncode == 69 and "127.0.0.1:1" in refused.stdout, refused
    return None


CASES = [
    ss_names_owner_and_descriptor,
    why_tells_each_socket,
    top_on_a_terminal,
    top_on_a_small_terminal,
    why_explains_programs_that_are_not_preloaded,
    why_finds_the_host_in_the_run_folder_of_the_program,
    why_knows_set_user_id,
    why_reads_the_config,
    dpdks_own_client_reads_the_telemetry,
    metrics_on_a_unix_socket,
    metrics_on_loopback,
    tshark_reads_a_capture_and_agrees_with_the_counters,
    capture_filters_cuts_and_ends,
    a_capture_goes_on_in_other_files,
    capture_loses_frames_and_not_traffic_when_the_disk_is_slow,
    a_capture_without_room_counts_what_is_in_its_file,
    others_may_ask_a_service_for_numbers_and_not_for_payloads,
    trace_tells_what_happens_to_a_connection,
    bench_measures_what_the_stack_serves,
    collect_gathers_what_helps_and_nothing_secret,
]

if __name__ == "__main__":
    main("admin", CASES, Admin, lambda admin: admin.lab.close())
