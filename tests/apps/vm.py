#!/usr/bin/env python3
"""A real PCI device: K-NET's quick start, followed literally in a virtual machine with the RPM's files.

qemu emulates the machine (TCG), its IOMMU and the NICs; the kernel is Debian's, its system this machine's, read-only.
The client is a kernel outside it, at the other end of a tap. Needs root."""

import glob
import os
import re
import time

from harness import ROOT, wait_for
from vm_machine import Machine, main_if_there
from vm_parts import run

PROFILE = os.environ.get("KNET_BUILD", "release")
# BDF, MAC, address of the guest, DPDK's driver, the kernel's, how it is bound and given back.
PORTS = [
    ("0000:00:10.0", "52:54:00:2e:1b:a0", "192.168.1.58", "librte_net_virtio.so", "virtio-pci",
     "dpdk-devbind.py -b vfio-pci 0000:00:10.0", "dpdk-devbind.py -b virtio-pci 0000:00:10.0"),
    ("0000:00:11.0", "52:54:00:2e:1b:a1", "192.168.2.58", "librte_net_e1000.so", "e1000",
     "knetctl nic bind 0000:00:11.0", "knetctl nic unbind 0000:00:11.0"),
]
MEMORY_MB, HUGEPAGES = 1536, 128


class QuickStart(Machine):
    """With the RPM's files in it, two NICs, and a client in a namespace outside it."""

    script = "quickstart.sh"
    memory_mb = MEMORY_MB
    append = f"intel_iommu=on iommu=nopt hugepages={HUGEPAGES}"

    def prepare(self):
        out, extra = os.path.join(self.work, "out"), os.path.join(self.work, "extra")
        run(os.path.join(ROOT, "scripts", "package.sh"), "--rpm", "--no-build", "--out", out,
            seconds=300, env={**os.environ, "KNET_BUILD": PROFILE})
        os.makedirs(extra)
        run("rpm", "--root", extra, "--initdb")
        run("rpm", "--root", extra, "-i", "--nodeps", *glob.glob(out + "/*.rpm"))
        super().prepare()
        with open(f"{extra}/ports.sh", "w", encoding="ascii") as file:
            for driver in ("virtio_net", "e1000"):
                file.write(f"modprobe {driver}\n")
            file.write("sleep 1\n")
            for port in PORTS:
                file.write("quickstart " + " ".join(f"'{word}'" for word in port) + "\n")
        inside = lambda *words: run("ip", "-n", self.namespace, *words)
        for number, kind in ((0, ["multi_queue"]), (1, [])):
            run("ip", "netns", "exec", self.namespace, "ip", "tuntap", "add", "dev", f"qtap{number}", "mode", "tap", *kind)
            inside("addr", "add", f"192.168.{number + 1}.1/24", "dev", f"qtap{number}")
            inside("link", "set", f"qtap{number}", "up")

    def devices(self):
        tap = lambda number, more="": f"tap,id=n{number},ifname=qtap{number},script=no,downscript=no{more}"
        return [
            "-device", "intel-iommu,intremap=on,caching-mode=on,aw-bits=48",
            "-netdev", tap(0, ",queues=2"), "-netdev", tap(1),
            "-device", f"virtio-net-pci,netdev=n0,bus=pcie.0,addr=0x10,iommu_platform=on,disable-legacy=on,mq=on,vectors=6,mac={PORTS[0][1]}",
            "-device", f"e1000,netdev=n1,bus=pcie.0,addr=0x11,mac={PORTS[1][1]}",
        ]

    def client(self, *command, seconds=120):
        return run("ip", "netns", "exec", self.namespace, *command, seconds=seconds)


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
    steps = [line.removeprefix("VM step ") for line in machine.lines if line.startswith("VM step")]
    print(f"note: {', '.join(steps)}; in all {time.monotonic() - machine.began:.0f} s", flush=True)
    assert not any("knet: " in line for line in machine.lines), [line for line in machine.lines if "knet: " in line]
    machine.qemu.wait(30)


CASES = [the_quick_start_on_virtio_net, the_quick_start_on_e1000, the_machine_ends]

if __name__ == "__main__":
    main_if_there("vm", CASES, QuickStart, [("rpmbuild", "rpm"), ("dpdk-devbind.py", "dpdk")])
