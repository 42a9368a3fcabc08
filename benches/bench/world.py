"""The two worlds that take turns: the same server and client binaries on the kernel, and under the shim.

`one` accelerates the server only (its client is the kernel's, over a veth); `both` accelerates both ends (vhost and virtio_user,
no kernel between). The kernel's world is always a veth. Server programs run on CPU 0, clients on CPU 1, lcores where the host
puts them.
"""

import contextlib
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "apps"))

from harness import CLIENT, SERVER, Lab, wait_for  # noqa: E402

from . import machine  # noqa: E402
from .rows import KERNEL, KNET  # noqa: E402

PORT = 7379
# What scripts/lab.sh writes as max_tcpcb.
LAB_FLOWS = 24000
# Ports that one client address is good for.
PORTS = 50_000
SERVER_CPU, CLIENT_CPU = 0, min(1, (os.cpu_count() or 1) - 1)


class NamedLab(Lab):
    """A lab whose name is chosen: several of them are up at once."""

    def __init__(self, device, name, **options):
        self.wanted = name
        super().__init__(device, **options)

    @property
    def name(self):
        return self.wanted

    @name.setter
    def name(self, _):
        pass


def lab_knows(option):
    """Whether scripts/lab.sh has an option."""
    text = subprocess.run([os.path.join(ROOT, "scripts", "lab.sh"), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return f"--{option} " in text


def program(name, *flags):
    """Builds benches/c/NAME.c when it is not built, and returns its path."""
    return built(name, name, *flags)


def preloaded(name):
    """The same for one that is preloaded."""
    return built(name, f"lib{name}.so", "-shared", "-fPIC")


def built(name, target, *flags):
    source = os.path.join(ROOT, "benches", "c", f"{name}.c")
    target = os.path.join(ROOT, "target", "bench", target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    newest = max(os.path.getmtime(path) for path in (source, os.path.join(ROOT, "benches", "c", "wire.h")))
    if not os.path.exists(target) or os.path.getmtime(target) < newest:
        subprocess.run(["cc", "-O2", "-Wall", *flags, "-o", f"{target}.new", source], check=True)
        os.replace(f"{target}.new", target)
    return target


class World:
    """A server in a lab of its own, and its clients."""

    count = 0

    def __init__(self, label, options, ends="one", mtu=1500, idle="adaptive", offloads=False, flows=0, device=None):
        self.label = label
        self.ends = ends
        self.progress = options.progress if label == KNET else "kernel"
        World.count += 1
        more = {"mtu": mtu, "idle": idle}
        if label == KNET and lab_knows("progress"):
            more["progress"] = options.progress
        device = "vhost" if ends == "both" and label == KNET else device or options.device if label == KNET else "af_packet"
        self.lab = NamedLab(device, f"b{os.getpid()}-{World.count}", **more)
        self.locals = [CLIENT]
        if label == KERNEL and offloads:
            self.ethtool("tx", "on")
        if flows > LAB_FLOWS:
            self.make_place(flows)

    def make_place(self, flows):
        """Lets the server have so many connections, and the kernel's client begin them."""
        path = os.path.join(self.lab.state, "server.conf")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(f'"max_tcpcb": {LAB_FLOWS}', f'"max_tcpcb": {flows + 1000}'))
        inside = ["ip", "netns", "exec", f"knet-{self.lab.name}-c"]
        subprocess.run([*inside, "sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65535"], check=True)
        for number in range(3, 4 + flows // PORTS):
            self.locals.append(f"10.77.0.{number}")
            subprocess.run([*inside, "ip", "addr", "add", f"{self.locals[-1]}/24", "dev", "veth0"], check=True)

    def ethtool(self, *features):
        space = f"knet-{self.lab.name}-c"
        subprocess.run(["ip", "netns", "exec", space, "ethtool", "-K", "veth0", *features], check=True, stdout=subprocess.DEVNULL)

    def start(self, *command, ready=None):
        """Starts the server on its CPU and waits until it listens (or until `ready()`)."""
        kernel = ["--kernel"] if self.label == KERNEL else []
        self.process = self.lab.start("server", *kernel, "taskset", "-c", str(SERVER_CPU), *command, log="server.log")
        wait_for("the server listens", ready or self.listens, 30)
        self.server = self.find("s", os.path.basename(command[0]))
        self.hosts = [pid for pid in (self.find("s", "knetd"), self.find("c", "knetd")) if pid]
        self.made = 0
        self.before = self.served()
        self.opens = {end: self.lab.kernel_tcp(end) for end in "sc"}
        return self

    def serve(self, processes=1):
        """Starts the benchmark's own server."""
        return self.start(program("server"), SERVER, str(PORT), str(processes))

    def listens(self):
        if self.process.poll() is not None:
            with open(self.process.log, encoding="utf-8", errors="replace") as log:
                raise AssertionError(f"the server ended: {log.read()[-500:]}")
        if self.label == KNET:
            return self.lab.stats().get("listeners_made", 0) > 0
        with contextlib.suppress(OSError):
            self.lab.connect(PORT, 0.5).close()
            return True
        return False

    def find(self, end, comm):
        """The first process of that name."""
        return next(iter(self.find_all(end, comm)), None)

    def find_all(self, end, comm):
        space = f"knet-{self.lab.name}-{end}"
        pids = subprocess.run(["ip", "netns", "pids", space], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        found = []
        for pid in pids:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="ascii") as file:
                if file.read().startswith(comm[:15]):
                    found.append(int(pid))
        return found

    def command(self, *command):
        return self.lab.command("client", "taskset", "-c", str(CLIENT_CPU), *command)

    def client(self, *words, seconds=300):
        """Runs the benchmark's own client; its figures."""
        command = self.command(program("client"), SERVER, str(PORT), *map(str, words))
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{self.label}: client {words} ended with {done.returncode}: {done.stderr[-500:]}")
        figures = json.loads(done.stdout.splitlines()[-1])
        self.made += figures["count"]
        return figures

    def cpu_ns(self):
        """CPU time of the server's side so far."""
        return machine.cpu_ns(self.server) + machine.cpu_ns(self.find("s", "knetd"))

    @staticmethod
    def busy_ns():
        """CPU time of the whole machine so far."""
        return machine.busy_ns()

    def served(self):
        """Connections that the stack has served: accepted, and with both ends of them the ones it began.

        Inline a client's stack ends with the client, and nobody is left to say what it began: then the server's side says it,
        and the kernel's counters of both ends (`share`)."""
        if self.label == KERNEL:
            return {}
        stats = self.lab.stats()
        asks_client = self.ends == "both" and self.progress != "inline"
        wanted = ["flows_accepted", "flows_connected"] if asks_client else ["flows_accepted"]
        return {name: stats.get(name, 0) for name in wanted}

    def share(self):
        """The part of the connections made that the stack served; 0 when the kernel's own counters moved (design section 7)."""
        if self.label == KERNEL:
            return 1.0
        for end, name in (("s", "PassiveOpens"), ("c", "ActiveOpens")) if self.ends == "both" else (("s", "PassiveOpens"),):
            if self.lab.kernel_tcp(end)[name] != self.opens[end][name]:
                return 0.0
        counts = [after - self.before[name] for name, after in self.served().items()]
        return min(1.0, *(count / self.made for count in counts)) if self.made else 1.0

    def threads(self):
        """Where the threads run."""
        lines = machine.placement(self.server)
        found = lines[:1] + [line for line in lines[1:] if line.startswith("knet")]
        for end in "sc":
            found += [f"{line} ({'server' if end == 's' else 'client'} side)" for line in machine.placement(self.find(end, "knetd"))]
        return found + [f"client program on CPU {CLIENT_CPU}"]

    def describe(self, results, case):
        """Notes in `results` what each row of a case must state."""
        if self.label == KNET:
            results.describe(case, progress=self.progress, ends=self.ends, threads=self.threads(), served_by_stack=self.share())

    def close(self):
        self.lab.close()


@contextlib.contextmanager
def both_worlds(options, processes=1, **how):
    """A kernel and a knet world with servers, closed at the end."""
    worlds = []
    try:
        for label in (KERNEL, KNET):
            worlds.append(World(label, options, **how))
            worlds[-1].serve(processes)
        yield worlds
    finally:
        for world in worlds:
            world.close()


__all__ = ["CLIENT", "SERVER", "World", "both_worlds", "preloaded", "program", "wait_for"]
