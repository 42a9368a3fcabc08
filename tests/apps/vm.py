#!/usr/bin/env python3
"""A real PCI device: K-NET's quick start, followed literally in a virtual machine with the RPM's files.

qemu emulates the machine (TCG), its IOMMU and the NICs; the kernel is Debian's, its system this machine's, read-only.
The client is a kernel outside it, at the other end of a tap. Needs root."""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from folder import work_folder
from harness import ROOT, main, wait_for
from vm_parts import CACHE, emulator, kernel, run

PROFILE = os.environ.get("KNET_BUILD", "release")
VM = os.path.join(ROOT, "tests", "vm")
# What the machine needs before its system is there, and what the quick start loads by modprobe.
BOOT_MODULES = ["virtio_pci", "9p", "9pnet_virtio", "overlay"]
LATER_MODULES = ["virtio_net", "e1000", "vfio", "vfio_iommu_type1", "vfio-pci"]
# BDF, MAC, address of the guest, DPDK's driver, the kernel's, how it is bound and given back.
PORTS = [
    ("0000:00:10.0", "52:54:00:2e:1b:a0", "192.168.1.58", "librte_net_virtio.so", "virtio-pci",
     "dpdk-devbind.py -b vfio-pci 0000:00:10.0", "dpdk-devbind.py -b virtio-pci 0000:00:10.0"),
    ("0000:00:11.0", "52:54:00:2e:1b:a1", "192.168.2.58", "librte_net_e1000.so", "e1000",
     "knetctl nic bind 0000:00:11.0", "knetctl nic unbind 0000:00:11.0"),
]
MEMORY_MB, HUGEPAGES = 1536, 128


def needed(modules, version):
    """Files of the modules and of what they depend on, in the order of loading."""
    order = []
    for module in modules:
        shown = run("modprobe", "-d", CACHE, "-S", version, "--show-depends", module)
        for line in shown.splitlines():
            words = line.split()
            if words and words[0] == "insmod" and words[1] not in order:
                order.append(words[1])
    return order


def remove_machine(work):
    """Ends a machine whose runner is dead, by its namespace, in which nobody else is."""
    namespace = os.path.join(work, "namespace")
    if os.path.isfile(namespace):
        with open(namespace, encoding="ascii") as file:
            name = file.read()
        if os.path.exists(f"/run/netns/{name}"):
            for pid in run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "del", name)
    shutil.rmtree(work)


class Machine:
    """A running virtual machine in a network namespace of its own, and what it has said."""

    processes = []

    def __init__(self):
        self.image = kernel()
        self.work = work_folder("vm", remove_machine)
        self.namespace = f"knet-vm-{os.getpid()}"
        self.qemu = None
        self.lines = []
        try:
            self.prepare()
            self.boot()
        except BaseException:
            self.close()
            raise

    def prepare(self):
        """The package's files and the modules in one folder, an initramfs, the namespace with its taps."""
        out, extra = os.path.join(self.work, "out"), os.path.join(self.work, "extra")
        run(os.path.join(ROOT, "scripts", "package.sh"), "--rpm", "--no-build", "--out", out,
            seconds=300, env={**os.environ, "KNET_BUILD": PROFILE})
        os.makedirs(extra)
        run("rpm", "--root", extra, "--initdb")
        run("rpm", "--root", extra, "-i", "--nodeps", *glob.glob(out + "/*.rpm"))
        version = os.path.basename(self.image).removeprefix("vmlinuz-")
        # The system's /lib is a link to usr/lib.
        shutil.copytree(f"{CACHE}/lib/modules/{version}", f"{extra}/usr/lib/modules/{version}")
        shutil.copy(os.path.join(VM, "quickstart.sh"), extra)
        with open(f"{extra}/ports.sh", "w", encoding="ascii") as file:
            for driver in ("virtio_net", "e1000"):
                file.write(f"modprobe {driver}\n")
            file.write("sleep 1\n")
            for port in PORTS:
                file.write("quickstart " + " ".join(f"'{word}'" for word in port) + "\n")
        tree = os.path.join(self.work, "initramfs")
        os.makedirs(f"{tree}/bin")
        os.makedirs(f"{tree}/lib")
        shutil.copy(shutil.which("busybox"), f"{tree}/bin/busybox")
        shutil.copy(os.path.join(VM, "init"), f"{tree}/init")
        os.chmod(f"{tree}/init", 0o755)
        files = needed(BOOT_MODULES, version)
        for file in files:
            shutil.copy(file, f"{tree}/lib/")
        with open(f"{tree}/modules", "w", encoding="ascii") as file:
            file.write("\n".join(map(os.path.basename, files)) + "\n")
        run("bash", "-c", f"cd {tree} && find . | cpio --quiet -o -H newc >{self.work}/initrd")
        with open(os.path.join(self.work, "namespace"), "w", encoding="ascii") as file:
            file.write(self.namespace)
        run("ip", "netns", "add", self.namespace)
        inside = lambda *words: run("ip", "-n", self.namespace, *words)
        inside("link", "set", "lo", "up")
        for number, kind in ((0, ["multi_queue"]), (1, [])):
            run("ip", "netns", "exec", self.namespace, "ip", "tuntap", "add", "dev", f"qtap{number}", "mode", "tap", *kind)
            inside("addr", "add", f"192.168.{number + 1}.1/24", "dev", f"qtap{number}")
            inside("link", "set", f"qtap{number}", "up")

    def boot(self):
        tap = lambda number, more="": f"tap,id=n{number},ifname=qtap{number},script=no,downscript=no{more}"
        share = lambda name, path: ["-fsdev", f"local,id={name},path={path},security_model=none,readonly=on,multidevs=remap",
                                    "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
        command = [
            "ip", "netns", "exec", self.namespace, *emulator(), "-M", "q35,accel=tcg,kernel-irqchip=split",
            "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MB), "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
            "-device", "intel-iommu,intremap=on,caching-mode=on,aw-bits=48",
            "-kernel", self.image, "-initrd", f"{self.work}/initrd",
            # no_timer_check: an emulator that waits for a CPU of a busy machine fails that test of the kernel's.
            "-append", f"console=ttyS0 intel_iommu=on iommu=nopt no_timer_check hugepages={HUGEPAGES} panic=-1 quiet"
                       " random.trust_cpu=on",
            *share("root", "/"), *share("extra", f"{self.work}/extra"),
            "-netdev", tap(0, ",queues=2"), "-netdev", tap(1),
            "-device", f"virtio-net-pci,netdev=n0,bus=pcie.0,addr=0x10,iommu_platform=on,disable-legacy=on,mq=on,vectors=6,mac={PORTS[0][1]}",
            "-device", f"e1000,netdev=n1,bus=pcie.0,addr=0x11,mac={PORTS[1][1]}",
        ]
        self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     start_new_session=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.qemu.stdout:
            self.lines.append(line.decode(errors="replace").strip())

    def said(self, start, seconds, after=0):
        """Waits for a line, among those after the first `after`; returns its number and the line."""
        def has():
            for number, line in list(enumerate(self.lines))[after:]:
                if line.startswith("VM fail"):
                    raise AssertionError("\n".join(self.lines[-40:]))
                if line.startswith(start):
                    return number, line
            if self.qemu.poll() is not None:
                raise AssertionError(f"the machine has ended: {self.lines[-40:]}")
            return None

        try:
            return wait_for(f"the machine says {start!r}", has, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(self.lines[-40:])) from None

    def client(self, *command, seconds=120):
        return run("ip", "netns", "exec", self.namespace, *command, seconds=seconds)

    def close(self):
        if self.qemu and self.qemu.poll() is None:
            self.qemu.kill()
            self.qemu.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.work, ignore_errors=True)


def serves(machine, port, requests):
    bdf, _, address = port[:3]
    at, _ = machine.said(f"VM ready {address}", 300)
    begin = time.monotonic()
    assert machine.client("redis-cli", "-h", address, "-p", "6380", "ping").strip() == "PONG"
    clients = 20
    said = machine.client("redis-benchmark", "-h", address, "-p", "6380", "-c", str(clients), "-n", str(requests),
                          "-r", "1000", "-t", "set,get", "--csv")
    rates = dict(re.findall(r'"(SET|GET)","([\d.]+)"', said))
    assert set(rates) == {"SET", "GET"}, said
    wait_for("the counters are told", lambda: any(
        line.startswith("VM stat stack.flows_accepted") and int(line.split()[3]) >= 2 * clients for line in machine.lines[at:]), 60)
    machine.client("bash", "-c", f"redis-cli -h {address} -p 6380 shutdown nosave || true")
    # The stack had every connection, on the core that the file names; the kernel of the machine had none.
    # The host stays for TIME-WAIT and linger_s.
    _, kernel_opens = machine.said("VM kernel", 150, at)
    assert kernel_opens == "VM kernel 0", kernel_opens
    stats = {line.split()[2]: line.split()[3] for line in machine.lines[at:] if line.startswith("VM stat")}
    assert stats["cpu"] == "1", stats
    assert int(stats["port.rx_frames"]) > requests, stats
    machine.said(f"VM returned {bdf}", 90, at)
    print(f"note: {bdf} {port[3]}: SET {rates['SET']}, GET {rates['GET']} requests/s under emulation, "
          f"{time.monotonic() - begin:.0f} s", flush=True)


def the_quick_start_on_virtio_net(machine):
    serves(machine, PORTS[0], 1000)


def the_quick_start_on_e1000(machine):
    serves(machine, PORTS[1], 500)


def the_machine_ends(machine):
    machine.said("VM end", 120)
    assert not any("knet: " in line for line in machine.lines), [line for line in machine.lines if "knet: " in line]
    machine.qemu.wait(30)


CASES = [the_quick_start_on_virtio_net, the_quick_start_on_e1000, the_machine_ends]

if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIP vm: needs root")
        sys.exit(0)
    for program, package in (("busybox", "busybox-static"), ("cpio", "cpio"), ("modprobe", "kmod"), ("rpmbuild", "rpm"),
                             ("apt-get", "apt"), ("dpdk-devbind.py", "dpdk")):
        if not shutil.which(program):
            print(f"SKIP vm: {program} is missing ({package})")
            sys.exit(0)
    try:
        there, reason = kernel() and emulator(), "there is no linux-image-amd64"
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        there, reason = None, str(error).splitlines()[0]
    if not there:
        print(f"SKIP vm: no machine to boot: {reason}")
        sys.exit(0)
    main("vm", CASES, Machine, Machine.close)
