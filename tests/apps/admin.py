#!/usr/bin/env python3
"""What an operator sees of real programs: two hosts over a unix socket, no privilege."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

from harness import CLIENT, ROOT, SERVER, Lab, main, wait_for

BUILD = os.path.join(ROOT, "target", os.environ.get("KNET_BUILD", "release"))
KNETCTL = os.path.join(BUILD, "knetctl")
PORT = 6379


class Admin:
    def __init__(self):
        self.lab = Lab(device="unix")
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


def ss_names_owner_and_descriptor(admin):
    sockets = admin.ask("ss", "-a", "--json")
    listener = next(socket for socket in sockets if socket["state"] == "LISTEN")
    assert (listener["local"], listener["local_port"], listener["processes"]) == (SERVER, PORT, [admin.pid]), listener
    link = os.readlink(f"/proc/{admin.pid}/fd/{listener['fd']}")
    assert link.startswith("socket:"), link
    held = admin.lab.start("client", "redis-cli", "-h", SERVER, "subscribe", "x", log="subscriber.log")
    def connections(end):
        return [socket for socket in admin.ask("ss", "--json", end=end) if socket["state"] == "ESTAB"]

    (peer,) = wait_for("it is connected", lambda: connections("c"))
    (flow,) = wait_for("it is accepted", lambda: [socket for socket in connections("s") if socket["fd"]])
    assert flow["peer"] == CLIENT and flow["processes"] == [admin.pid] and flow["fd"] not in (None, listener["fd"]), flow
    assert peer["made_by"] == "connect" and peer["local_port"] == flow["peer_port"], peer
    assert f"(\"redis-server\",pid={admin.pid},fd={flow['fd']})" in admin.ask("ss"), admin.ask("ss")
    admin.lab.end(held)
    wait_for("it is gone", lambda: not admin.ask("ss", "--json"))


def why_tells_each_socket(admin):
    told = admin.ask("why", admin.pid, "--json")
    assert told["accelerated"], told
    by_path = {}
    for socket in told["sockets"]:
        by_path.setdefault(socket["path"], []).append(socket)
    (ours,) = [socket for socket in by_path["stack"] if "LISTEN" in socket["socket"]]
    assert ours["socket"] == f"TCP {SERVER}:{PORT} LISTEN", ours
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


def metrics_are_off_unless_asked_for(admin):
    conf, run = os.path.join(admin.lab.work, "metrics.conf"), os.path.join(admin.lab.work, "run-metrics")
    path = os.path.join(admin.lab.work, "metrics.sock")
    with open(conf, "w", encoding="ascii") as file:
        file.write(f'{{"interface": {{"vdevs": ["knet_unix,path={admin.lab.work}/wire"], "ip": "10.77.1.1"}},'
                   f' "common": {{"metrics": "unix:{path}", "linger_s": 0}}}}')
    os.makedirs(run, mode=0o700)
    listens = LISTENS.replace("'0.0.0.0', 0", "'10.77.1.1', 80")
    changed = {"KNET_CONF": conf, "KNET_RUN_DIR": run, "KNET_HOST": os.path.join(BUILD, "knetd")}
    process = started(admin, [sys.executable, "-c", listens], LD_PRELOAD=os.path.join(BUILD, "libknet_frame.so"), **changed)
    wait_for("the socket is there", lambda: os.path.exists(path))

    def get(request):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(10)
        peer.connect(path)
        peer.sendall(request)
        parts = []
        while part := peer.recv(65536):
            parts.append(part)
        return b"".join(parts).decode().split("\r\n\r\n", 1)

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
            samples[name] = int(value)
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
    wait_for("the socket is gone with its host", lambda: not os.path.exists(path))


CASES = [
    ss_names_owner_and_descriptor,
    why_tells_each_socket,
    why_explains_programs_that_are_not_preloaded,
    why_knows_set_user_id,
    why_reads_the_config,
    dpdks_own_client_reads_the_telemetry,
    metrics_are_off_unless_asked_for,
]

if __name__ == "__main__":
    main("admin", CASES, Admin, lambda admin: admin.lab.close())
