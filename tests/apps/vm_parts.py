"""What the virtual machine is made of: Debian's kernel and, where no qemu is installed, Debian's qemu.

Both are unpacked in the build folder. To install qemu would remove what came from elsewhere (a newer qemu-utils)."""

import glob
import os
import re
import shutil
import subprocess
import tempfile

from harness import ROOT

CACHE = os.path.join(ROOT, "target", "vm")
QEMU = "qemu-system-x86_64"


def run(*command, seconds=120, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                          timeout=seconds, **options)
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout


def unpack(packages, keep, parts):
    """Downloads the packages and moves `parts` of what matches the patterns `keep` into the build folder."""
    os.makedirs(CACHE, exist_ok=True)
    work = tempfile.mkdtemp(dir=CACHE)
    try:
        # The unprivileged user that apt downloads as must get in.
        os.chmod(work, 0o777)
        run("apt-get", "download", *packages, cwd=work, seconds=300)
        for package in glob.glob(f"{work}/*.deb"):
            tar = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", work, "--wildcards", *keep], stdin=tar.stdout, check=True, timeout=300)
            tar.communicate()
        for part in parts:
            shutil.rmtree(f"{CACHE}/{part}", ignore_errors=True)
            os.rename(f"{work}/{part}", f"{CACHE}/{part}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def kernel():
    """The kernel's image, with its modules beside it; None where Debian has none."""
    found = glob.glob(f"{CACHE}/boot/vmlinuz-*")
    # Not an older version of this list.
    if found and glob.glob(f"{CACHE}/lib/modules/*/kernel/drivers/net/veth.ko"):
        return found[0]
    depends = run("apt-cache", "depends", "linux-image-amd64")
    name = re.search(r"Depends: (linux-image-[\w.-]+)", depends)
    if not name:
        return None
    unpack([name[1]], ["./boot/vmlinuz-*", "./lib/modules/*/modules.*", "*/drivers/virtio/*", "*/drivers/net/virtio_net.ko",
                       "*/drivers/net/net_failover.ko", "*/drivers/net/veth.ko", "*/net/core/failover.ko", "*/ethernet/intel/e1000/*",
                       "*/drivers/vfio/*", "*/virt/lib/*", "*/fs/9p/*", "*/net/9p/*", "*/fs/fscache/*", "*/fs/netfs/*",
                       "*/fs/overlayfs/*"], ["lib", "boot"])
    version = os.listdir(f"{CACHE}/lib/modules")[0]
    run("depmod", "-b", CACHE, version)
    return glob.glob(f"{CACHE}/boot/vmlinuz-*")[0]


def emulator():
    """The command that starts qemu: the machine's own, or that of the package beside which nothing is installed."""
    if shutil.which(QEMU):
        return [QEMU]
    if not os.path.exists(f"{CACHE}/usr/bin/{QEMU}"):
        # What apt would install is what is missing; what it would remove stays.
        plan = run("apt-get", "install", "--simulate", "--no-install-recommends", "qemu-system-x86",
                   env={**os.environ, "LC_ALL": "C"})
        missing = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", plan, re.MULTILINE)
        assert missing, f"apt-get would install nothing: {plan[-500:]}"
        unpack([f"{name}={version}" for name, version in missing], ["./usr/*"], ["usr"])
    folders = [word for path in ("share/qemu", "share/seabios", "lib/ipxe/qemu") for word in ("-L", f"{CACHE}/usr/{path}")]
    libraries = f"{CACHE}/usr/lib/x86_64-linux-gnu"
    command = ["env", f"LD_LIBRARY_PATH={libraries}", f"QEMU_MODULE_DIR={libraries}/qemu", f"{CACHE}/usr/bin/{QEMU}", *folders]
    run(*command, "--version")
    return command
