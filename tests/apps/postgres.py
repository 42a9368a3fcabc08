#!/usr/bin/env python3
"""PostgreSQL under the shim as a user of its own, with a backend process for each client; pgbench as the client."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import threading
import time

from harness import CLIENT, SERVER, Lab, apart, main, reached, served, wait_for

PORT = 5432
BINARIES = next(
    (folder for folder in (f"/usr/lib/postgresql/{version}/bin" for version in range(19, 12, -1)) if os.path.isdir(folder)), ""
)
USER = "postgres"
# The private host of a user who is not root needs this to open its port.
CAPABILITIES = "+net_raw,+net_admin,+ipc_lock"


class Postgres:
    def __init__(self):
        apart()
        self.lab = Lab()
        self.uid, self.gid = pwd.getpwnam(USER)[2:4]
        self.preload = self.lab.open_to(self.uid, self.gid)
        self.data = os.path.join(self.lab.work, "data")
        subprocess.run(
            [*self.as_user(), f"{BINARIES}/initdb", "-D", self.data, "-A", "trust", "-N", "--no-instructions"],
            check=True, stdout=subprocess.DEVNULL, cwd=self.lab.work,
        )
        with open(os.path.join(self.data, "pg_hba.conf"), "w", encoding="ascii") as file:
            file.write("local all all trust\nhost all all 10.77.0.0/24 trust\n")
        self.server = None
        self.start()

    @property
    def processes(self):
        return self.lab.processes

    def as_user(self):
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]

    def shimmed_user(self):
        return [*self.as_user(), f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}", *self.preload]

    def start(self, **settings):
        settings = {"listen_addresses": SERVER, "port": PORT, "fsync": "off", "unix_socket_directories": self.lab.work, **settings}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self.server = self.lab.start(
            "server", *self.shimmed_user(), f"{BINARIES}/postgres", "-D", self.data, *options, log="postgres.log",
        )
        wait_for("postgres answers", lambda: self.psql("select 1", check=False).strip() == "1", 20)

    def psql(self, query, check=True):
        return self.lab.client(*self.psql_command(), "-c", query, check=check)

    def psql_command(self):
        return [f"{BINARIES}/psql", "-XAtq", "-h", SERVER, "-p", str(PORT), "-U", USER, "-d", "postgres"]

    def pgbench(self, *options, run=None, address=SERVER):
        words = [f"{BINARIES}/pgbench", "-h", address, "-p", str(PORT), "-U", USER, *options, "postgres"]
        return (run or self.lab.client)(*words, seconds=60)


def queries_and_copies(postgres):
    with served(postgres.lab, 5):
        assert postgres.psql("select count(*) from generate_series(1, 100000)").strip() == "100000"
        big = postgres.psql("select repeat('knet ', 1000000)").strip()
        assert big == ("knet " * 1_000_000).strip(), len(big)
        postgres.psql("create table if not exists kept (n int, t text)")
        lines = "".join(f"{n}\t{'x' * (n % 100)}\n" for n in range(50_000))
        path = os.path.join(postgres.lab.work, "lines")
        with open(path, "w", encoding="ascii") as file:
            file.write(lines)
        postgres.psql(f"\\copy kept from '{path}'")
        assert postgres.psql("select count(*), sum(length(t)) from kept").strip() == "50000|2475000"


def pgbench(postgres):
    """Eight clients; a connection for all transactions, then a connection for each."""
    with served(postgres.lab, 100):
        postgres.pgbench("-i", "-s", "1", "-q")
        for options in (["-c", "8", "-j", "2", "-T", "2"], ["-c", "4", "-j", "2", "-t", "50", "-C", "-S"], ["-c", "4", "-t", "100", "-M", "prepared"]):
            out = postgres.pgbench(*options)
            assert "number of failed transactions: 0" in out, out
            print(f"pgbench {' '.join(options)}: {re.search('tps = .*', out)[0]}", flush=True)
    balances = "select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)"
    assert postgres.psql(balances).strip() == "t"


def pg_terminate_backend(postgres):
    """One client's backend ends; that client alone hears of it."""
    with served(postgres.lab, 2):
        sleeper = subprocess.Popen(
            postgres.lab.command("client", *postgres.psql_command(), "-c", "select pg_sleep(60)"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        query = "select pid from pg_stat_activity where query like 'select pg_sleep(60)%' and pid <> pg_backend_pid()"
        wait_for("the sleeper sleeps", lambda: postgres.psql(query).strip())
        assert postgres.psql(f"select pg_terminate_backend(({query}))").strip() == "t"
        out, _ = sleeper.communicate(timeout=10)
        assert "terminating connection" in out, out


def a_backend_is_killed(postgres):
    """kill -9 of a backend: the postmaster ends the others and comes back, as on the kernel; the port is never lost."""
    with served(postgres.lab, 2):
        stop, seen = threading.Event(), []

        def ask():
            while not stop.is_set():
                seen.append(postgres.psql("select pg_backend_pid()", check=False).strip())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        sleeper = subprocess.Popen(
            postgres.lab.command("client", *postgres.psql_command(), "-c", "select pg_backend_pid()", "-c", "select pg_sleep(60)"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        pid = int(sleeper.stdout.readline())
        os.kill(pid, signal.SIGKILL)
        out, _ = sleeper.communicate(timeout=10)
        assert "server closed the connection" in out or "reset" in out, out
        wait_for("postgres is back", lambda: postgres.psql("select 2", check=False).strip() == "2", 20)
        time.sleep(0.3)
        stop.set()
        asking.join()
    assert seen[-1].isdigit(), seen[-1]
    assert postgres.server.poll() is None


def a_fast_shutdown_and_a_start_at_once(postgres):
    postgres.server.send_signal(signal.SIGINT)
    postgres.server.wait(20)
    assert postgres.server.returncode == 0, postgres.server.returncode
    postgres.start()
    with served(postgres.lab):
        assert postgres.psql("select 3").strip() == "3"


def pgbench_under_the_shim(postgres):
    """PostgreSQL on the kernel, its clients under the shim."""
    data = os.path.join(postgres.lab.work, "kernel")
    shutil.copytree(postgres.data, data, ignore=shutil.ignore_patterns("postmaster.pid"))
    subprocess.run(["chown", "-R", f"{postgres.uid}:{postgres.gid}", data], check=True)
    os.chmod(data, 0o700)
    server = postgres.lab.start(
        "client", *postgres.as_user(), f"{BINARIES}/postgres", "-D", data, "-c", f"listen_addresses={CLIENT}", "-c", f"port={PORT}",
        "-c", "fsync=off", "-c", f"unix_socket_directories={data}", log="postgres-kernel.log",
    )

    def shimmed(*words, seconds):
        return postgres.lab.shimmed(*postgres.shimmed_user(), *words, seconds=seconds)

    def answers():
        return "accepting" in postgres.lab.client(f"{BINARIES}/pg_isready", "-h", CLIENT, "-p", str(PORT), check=False)

    try:
        wait_for("the kernel's postgres answers", answers, 20)
        with reached(postgres.lab, 50):
            postgres.pgbench("-i", "-s", "1", "-q", run=shimmed, address=CLIENT)
            for options in (["-c", "8", "-j", "2", "-T", "1"], ["-c", "4", "-j", "2", "-t", "20", "-C", "-S"]):
                out = postgres.pgbench(*options, run=shimmed, address=CLIENT)
                assert "number of failed transactions: 0" in out, out
    finally:
        postgres.lab.end(server, signal.SIGINT)


CASES = [
    queries_and_copies, pgbench, pg_terminate_backend, a_backend_is_killed, a_fast_shutdown_and_a_start_at_once, pgbench_under_the_shim,
]

if __name__ == "__main__":
    main("postgres", CASES, Postgres, lambda postgres: postgres.lab.close())
