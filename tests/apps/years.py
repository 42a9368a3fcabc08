#!/usr/bin/env python3
"""What a service goes through in years: programs that execute themselves, reloads, processes killed at any moment. Nothing piles up.

With KNET_TEST_LONG=1 a thousand times each.
"""

import contextlib
import os
import random
import signal
import subprocess
import time

from harness import ROOT, SERVER, Lab, main, served, wait_for

LONG = os.environ.get("KNET_TEST_LONG") == "1"
TIMES = int(os.environ.get("KNET_TEST_TIMES", 1_000 if LONG else 30))
SEED = int(os.environ.get("KNET_TEST_SEED", random.randrange(1 << 32)))
PORT = 7400
# Files of statistics that are kept (host/admin/telemetry/persist.rs).
KEPT = 10
# Between two looks the host may take so much for tables that are touched for the first time.
ROOM_KIB = 3_072

# Answers with its turn, and executes itself: its listener goes along under its number.
AGAIN = r"""
import os, socket, sys
if len(sys.argv) == 3:
    l = socket.socket()
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((sys.argv[1], int(sys.argv[2])))
    l.listen(16)
    l.set_inheritable(True)
    turn = 0
else:
    l, turn = socket.socket(fileno=int(sys.argv[3])), int(sys.argv[4])
peer, _ = l.accept()
assert peer.recv(1) == b"?"
peer.sendall(b"%d" % turn)
peer.recv(1)
peer.close()
os.execv(sys.executable, [sys.executable, "-S", *sys.argv[:3], str(l.fileno()), str(turn + 1)])
"""

# Makes an epoll and a socket for each generation of its children, and serves in the end.
GENERATIONS = r"""
import os, select, socket, sys
anchor = socket.socket()
anchor.bind((sys.argv[1], 0))
anchor.listen(1)
for _ in range(int(sys.argv[3])):
    e, s = select.epoll(), socket.socket()
    r, w = os.pipe()
    children = []
    for _ in range(int(sys.argv[4])):
        pid = os.fork()
        if pid == 0:
            os.close(w)
            os.read(r, 1)
            os._exit(0)
        children.append(pid)
    os.close(w)
    os.close(r)
    for pid in children:
        os.waitpid(pid, 0)
    e.close()
    s.close()
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(16)
e = select.epoll()
e.register(l, select.EPOLLIN)
while True:
    e.poll()
    peer, _ = l.accept()
    peer.sendall(b"served")
    peer.close()
"""
# More than there are records of epolls (channel/layout.rs).
EPOLLS = 260
CHILDREN = 100 if LONG else 12

NGINX = """
daemon off; worker_processes 2; user root; pid {work}/nginx.pid; error_log {work}/nginx.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  server {{ listen {server}:{port}; location / {{ return 200 "knet"; }} }}
}}
"""


class Years:
    def __init__(self):
        self.lab = Lab()
        self.port = PORT
        print(f"seed {SEED}", flush=True)

    @property
    def processes(self):
        return self.lab.processes

    def pids(self, name):
        """Processes of that name at the server's end."""
        return pids(self.lab, name)

    def asks(self, question, port, seconds=10):
        """What the server answers; None when it does not."""
        with contextlib.suppress(OSError), contextlib.closing(self.lab.connect(port, seconds)) as peer:
            peer.sendall(question)
            return peer.recv(1000) or None


def pids(lab, name):
    found = []
    done = subprocess.run(["ip", "netns", "pids", f"knet-{lab.name}-s"], stdout=subprocess.PIPE, text=True, check=True)
    for pid in map(int, done.stdout.split()):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as file:
            if file.read().startswith(name):
                found.append(pid)
    return found


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1])


def look(years, *watched):
    """What there is of everything that could pile up."""
    host = years.pids("knetd")
    assert len(host) == 1, host
    held = {f"descriptors of {pid}": len(os.listdir(f"/proc/{pid}/fd")) for pid in (*host, *watched)}
    held["KiB of the host"] = resident_kib(host[0])
    held.update(folders(years))
    stats = years.lab.stats()
    held["KiB of rings"] = stats["ring_bytes"] >> 10
    held["processes told by the host"] = sum(line.startswith("process ") for line in years.lab.run("status").splitlines())
    return held


def folders(years):
    """Files that outlive processes."""
    run = os.path.join(years.lab.state, "run-s")
    # Of the hosts before, ten leave their statistics; beside them lie those of this one and a lock.
    statistics = os.listdir(os.path.join(run, "stats"))
    assert len(statistics) <= KEPT + 3, statistics
    return {
        "files in the run folder": sum(len(files) + len(below) for _, below, files in os.walk(run)) - len(statistics),
        "files in /dev/shm": len(os.listdir("/dev/shm")),
    }


def nothing_piles_up(first, last):
    print(f"{first} at first, {last} at last", flush=True)
    assert first.keys() == last.keys(), (first, last)
    for name, then in last.items():
        room = ROOM_KIB if "KiB" in name else 1
        assert then <= first[name] + room, f"{name}: {first[name]}, and {then} at the end"


def a_program_executes_itself_again_and_again(years):
    path = os.path.join(years.lab.work, "again.py")
    with open(path, "w", encoding="ascii") as file:
        file.write(AGAIN)
    years.port += 1
    server = years.lab.start("server", "/usr/bin/python3", "-S", path, SERVER, str(years.port), log="again.log")
    answer = wait_for("the program answers", lambda: years.asks(b"?", years.port, 2), 15)
    (pid,) = years.pids("python3")
    turn, first = int(answer), None
    for count in range(TIMES):
        said = years.asks(b"?", years.port)
        assert said is not None and int(said) == turn + 1, (count, turn, said)
        turn += 1
        if count == TIMES // 5:
            first = look(years, pid)
    assert years.pids("python3") == [pid]
    nothing_piles_up(first, look(years, pid))
    years.lab.end(server)


def nginx_is_reloaded_again_and_again(years):
    years.port += 1
    config = os.path.join(years.lab.work, "nginx.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write(NGINX.format(work=years.lab.work, server=SERVER, port=years.port))
    server = years.lab.start("server", "nginx", "-c", config, log="nginx.out")
    get = b"GET / HTTP/1.0\r\n\r\n"
    wait_for("nginx answers", lambda: years.asks(get, years.port, 2), 15)
    with open(f"{years.lab.work}/nginx.pid", encoding="ascii") as file:
        master = int(file.read())
    first = None

    def others(before):
        """Two workers, none of which was there before."""
        now = set(years.pids("nginx")) - {master}
        return len(now) == 2 and not now & before and now

    workers = wait_for("two workers", lambda: others(set()))
    for count in range(TIMES):
        os.kill(master, signal.SIGHUP)
        workers = wait_for("the workers are others", lambda: others(workers), 20)
        assert (years.asks(get, years.port) or b"").startswith(b"HTTP/1.1 200"), f"no answer after reload {count}"
        if count == TIMES // 5:
            time.sleep(1)
            first = look(years, master)
    time.sleep(1)
    nothing_piles_up(first, look(years, master))
    years.lab.end(server)


def generations_of_children_use_no_record_up(years):
    years.port += 1
    words = (SERVER, str(years.port), str(EPOLLS), str(CHILDREN))
    server = years.lab.start("server", "/usr/bin/python3", "-S", "-c", GENERATIONS, *words, log="generations.log")
    with served(years.lab):
        wait_for("the program serves", lambda: years.asks(b"?", years.port, 2) == b"served", 120 if CHILDREN < 50 else 600)
    years.lab.end(server)


def processes_are_killed_at_any_moment(years):
    """A program, its host or both; what they leave behind is taken up by those who come."""
    chance = random.Random(SEED)
    program = os.path.join(years.lab.work, "server")
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, os.path.join(ROOT, "benches", "c", "server.c")], check=True)
    years.port += 1
    first = None

    def serves():
        server = years.lab.start("server", program, SERVER, str(years.port), log="killed.log")
        # The first byte says that it is to echo.
        wait_for("a server serves", lambda: years.asks(b"ehello", years.port, 2) == b"hello", 20)
        return server

    def kill(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    for count in range(TIMES):
        process = years.lab.start("server", program, SERVER, str(years.port), log="killed.log")
        time.sleep(chance.uniform(0, 0.4))
        victims = chance.choice((("server",), ("knetd",), ("server", "knetd"), ("knetd", "server"), ("knetctl",)))
        for name in victims:
            for pid in years.pids(name):
                kill(pid)
        time.sleep(chance.uniform(0, 0.1))
        # Also who has not become the server yet; a host is a session of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        years.lab.processes.remove(process)
        if count == TIMES // 5:
            server = serves()
            first = look_without_pids(years)
            kill(years.pids("server")[0])
            server.wait(10)
    server = serves()
    nothing_piles_up(first, look_without_pids(years))
    kill(years.pids("server")[0])
    server.wait(10)


def look_without_pids(years):
    """As `look`, of hosts that are others each time."""
    wait_for("one host is left", lambda: len(years.pids("knetd")) == 1, 20)
    held = look(years)
    return {"descriptors of the host" if name.startswith("descriptors") else name: count for name, count in held.items()}


CASES = [
    a_program_executes_itself_again_and_again, nginx_is_reloaded_again_and_again, generations_of_children_use_no_record_up,
    processes_are_killed_at_any_moment,
]

if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIP years: needs root for network namespaces")
    else:
        main("years", CASES, Years, lambda years: years.lab.close())
