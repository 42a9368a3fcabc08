"""A virtual machine that qemu emulates (TCG): the kernel is Debian's, its system this machine's, read-only."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from folder import work_folder
from harness import ROOT, main, wait_for
from vm_parts import CACHE, emulator, kernel, run

VM = os.path.join(ROOT, "tests", "vm")
# What the machine needs before its system is there.
BOOT_MODULES = ["virtio_pci", "9p", "9pnet_virtio", "overlay"]


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
    # Of tests/vm: what the machine runs.
    script = ""
    memory_mb = 1536
    # Words for the kernel's command line.
    append = ""

    def __init__(self):
        self.began = time.monotonic()
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
        """The script and the modules in one folder, an initramfs, the namespace."""
        extra = os.path.join(self.work, "extra")
        os.makedirs(extra, exist_ok=True)
        version = os.path.basename(self.image).removeprefix("vmlinuz-")
        # The system's /lib is a link to usr/lib.
        shutil.copytree(f"{CACHE}/lib/modules/{version}", f"{extra}/usr/lib/modules/{version}")
        shutil.copy(os.path.join(VM, self.script), f"{extra}/script.sh")
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
        run("ip", "-n", self.namespace, "link", "set", "lo", "up")

    def devices(self):
        """Words for qemu."""
        return []

    def boot(self):
        share = lambda name, path: ["-fsdev", f"local,id={name},path={path},security_model=none,readonly=on,multidevs=remap",
                                    "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
        command = [
            "ip", "netns", "exec", self.namespace, *emulator(), "-M", "q35,accel=tcg,kernel-irqchip=split",
            "-cpu", "max", "-smp", "2", "-m", str(self.memory_mb), "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
            "-kernel", self.image, "-initrd", f"{self.work}/initrd",
            # no_timer_check: an emulator that waits for a CPU of a busy machine fails that test of the kernel's.
            "-append", f"console=ttyS0 no_timer_check panic=-1 quiet random.trust_cpu=on {self.append}",
            *share("root", "/"), *share("extra", f"{self.work}/extra"), *self.devices(),
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

    def close(self):
        if self.qemu and self.qemu.poll() is None:
            self.qemu.kill()
            self.qemu.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.work, ignore_errors=True)


def main_if_there(name, cases, machine, programs=()):
    """Runs the cases on a machine, or says why there is none. `programs` lists what they need besides: command, package."""
    reason = None
    if os.geteuid() != 0:
        reason = "needs root"
    for program, package in (("busybox", "busybox-static"), ("cpio", "cpio"), ("modprobe", "kmod"), ("apt-get", "apt"), *programs):
        if not reason and not shutil.which(program):
            reason = f"{program} is missing ({package})"
    if not reason:
        try:
            there, said = kernel() and emulator(), "there is no linux-image-amd64"
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            there, said = None, str(error).splitlines()[0]
        reason = None if there else f"no machine to boot: {said}"
    if reason:
        print(f"SKIP {name}: {reason}")
        sys.exit(0)
    main(name, cases, machine, machine.close)
