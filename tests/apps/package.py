#!/usr/bin/env python3
"""The packages, as an operator has them: installed in a clean root, run, upgraded, removed. Needs root.

Nothing of the machine is changed: all happens in a mount namespace of this process, the RPM in an empty root, the deb in
a copy of this system that is thrown away."""

import contextlib
import ctypes
import glob
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys

from folder import work_folder
from harness import ROOT, leave_the_network, main

CLONE_NEWNS = 0x00020000
PROFILE = os.environ.get("KNET_BUILD", "release")
EDITED = '{ "interface": { "vdevs": ["knet_unix,path=/tmp/edited"], "ip": "10.9.9.9" } } # my own\n'

# Redis from the installed files, with a kernel client; every connection must have been the stack's.
DEMO = r"""
set -eu
lab=/usr/share/knet/lab.sh
trap '$lab down >/dev/null 2>&1 || true' EXIT
opens() { ip netns exec knet-lab-s awk '/^Tcp: [0-9]/ { print $7 }' /proc/net/snmp; }
$lab up >/dev/null
before=$(opens)
$lab server redis-server --bind 10.77.0.1 --protected-mode no --save '' --daemonize no >/tmp/redis.log 2>&1 &
for try in $(seq 50); do
  $lab client timeout 1 redis-cli -h 10.77.0.1 ping >/tmp/pong 2>&1 && grep -q PONG /tmp/pong && break
  sleep 0.1
done
grep -q PONG /tmp/pong || { cat /tmp/pong /tmp/redis.log /tmp/knet-lab-*/lab/*.log; exit 1; }
$lab client redis-benchmark -h 10.77.0.1 -c 20 -n 2000 -t set,get -q
$lab status
maps=$(cat /proc/[0-9]*/maps 2>/dev/null | grep -o '/usr/lib.*libknet_[a-z]*.so' | sort -u)
echo "mapped: $maps"
echo "opens: $(( $(opens) - before ))"
"""


def sha(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def run(*command, check=True, seconds=120, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
                          stdin=subprocess.DEVNULL, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def tree(folder, without=()):
    """Every file below a folder: its path, and what tells one from another."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(at, name)
            inner = os.path.relpath(path, folder)
            if any(inner == part or inner.startswith(part + "/") for part in without):
                continue
            it = os.lstat(path)
            content = os.readlink(path) if stat.S_ISLNK(it.st_mode) else sha(path) if stat.S_ISREG(it.st_mode) else ""
            found[inner] = (stat.S_IFMT(it.st_mode), content)
    return found


class Place:
    """A mount namespace of this process's own, and a folder in it that is a file system."""

    def __init__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare: needs root")
        run("mount", "--make-rprivate", "/")
        leave_the_network()
        self.work = work_folder("package")
        # An overlay's layers may not lie in each other.
        run("mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", self.work)
        self.rpms, self.debs = [], []

    def build(self, release, *options):
        """Makes both packages of the binaries that are there."""
        out = os.path.join(self.work, "out" + release)
        run(os.path.join(ROOT, "scripts", "package.sh"), "--no-build", "--out", out, "--release", release, *options,
            seconds=300, env={**os.environ, "KNET_BUILD": PROFILE})
        self.rpms += glob.glob(out + "/*.rpm")
        self.debs += glob.glob(out + "/*.deb")

    def close(self):
        # The mounts end with this process; what they covered is a folder.
        run("umount", "-l", self.work)
        shutil.rmtree(self.work, ignore_errors=True)

    @contextlib.contextmanager
    def system(self, name, *lower):
        """This machine's system with `lower` on top, writable, as a folder for chroot; yields it and its upper layer."""
        base = os.path.join(self.work, name)
        upper, layer, at = (os.path.join(base, part) for part in ("upper", "work", "root"))
        for folder in (upper, layer, at):
            os.makedirs(folder)
        options = f"lowerdir={':'.join([*lower, '/'])},upperdir={upper},workdir={layer}"
        run("mount", "-t", "overlay", "overlay", "-o", options, at)
        mounts = [("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "run"), ("tmpfs", "tmp")]
        try:
            for kind, folder in mounts:
                run("mount", "-t", kind, kind, os.path.join(at, folder))
            run("mount", "--rbind", "/dev", os.path.join(at, "dev"))
            # A checkout in a folder that was covered is there all the same.
            here = os.path.join(at, ROOT.lstrip("/"))
            if not os.path.isdir(here):
                os.makedirs(here)
                run("mount", "--bind", ROOT, here)
            for file in self.debs:
                shutil.copy(file, os.path.join(at, "tmp"))
            # Nobody looks for a page by its words here, and the index of all pages takes half a minute.
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(at, "var/lib/man-db/auto-update"))
            yield at, upper
        finally:
            run("umount", "-R", "-l", at, check=False)

    def deb(self, which):
        """A deb as a system made above sees it."""
        return "/tmp/" + os.path.basename(self.debs[which])


class Packages(Place):
    """Both packages in two releases, the second with another default config."""

    processes = []

    def __init__(self):
        super().__init__()
        other = os.path.join(self.work, "other.conf")
        with open(os.path.join(ROOT, "conf", "knet_comm.conf"), encoding="utf-8") as file:
            text = file.read().replace('"idle": "adaptive"', '"idle": "spin"')
        with open(other, "w", encoding="utf-8") as file:
            file.write(text)
        self.build("1")
        self.build("2", "--conf", other)
        assert len(self.rpms) == 2 and len(self.debs) == 2, (self.rpms, self.debs)

    def demo(self, root):
        """Runs the demo in a system and checks that the stack served all of it, with installed files only."""
        said = run("chroot", root, "/bin/bash", "-c", DEMO, env={"PATH": os.environ["PATH"], "HOME": "/root"})
        accepted = int(re.search(r"^flows_accepted (\d+)$", said, re.M).group(1))
        assert accepted >= 41, said
        assert re.search(r"^opens: 0$", said, re.M), f"the kernel served connections\n{said}"
        assert "libknet_frame.so" in said and "libknet_dpdk.so" in said and "target" not in said.split("mapped:")[1], said
        return accepted


def soname(library):
    """The ABI that a DPDK library of this machine says it has."""
    needed = run("readelf", "-d", library)
    return sorted(re.findall(r"NEEDED.*\[(librte_\w+\.so\.[0-9.]+)\]", needed))


def the_rpm_says_what_it_is(packages):
    package = packages.rpms[0]
    query = lambda what: run("rpm", "-qp", what, package).splitlines()
    requires = "\n".join(query("--requires"))
    dpdk = soname(os.path.join(ROOT, "target", PROFILE, "libknet_dpdk.so"))
    assert len(dpdk) >= 4, dpdk
    for name in dpdk:
        assert f"{name}()(64bit)" in requires, f"{name} is not required"
    assert any(line.startswith("knet = ") for line in query("--provides"))
    assert query("--conflicts") == ["knet"]
    configs = set(run("rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", package).splitlines())
    assert "/etc/knet/knet_comm.conf cn" in configs, configs
    scripts = run("rpm", "-qp", "--scripts", package)
    for word in ("start", "restart", "reload-or", "enable "):
        assert not re.search(rf"systemctl.*{word}", scripts), scripts
    files = set(query("--list"))
    for wanted in (
        "/usr/lib64/libknet_frame.so", "/usr/lib64/libknet_dpdk.so", "/usr/bin/knetd", "/usr/bin/knet_mp_daemon",
        "/usr/bin/knetctl", "/etc/knet/knet_comm.conf", "/usr/lib/systemd/system/knetd.service",
        "/usr/share/knet/drop-ins/redis-server.conf", "/usr/share/knet/drop-ins/memcached.conf",
        "/usr/share/knet/drop-ins/nginx.conf", "/usr/share/knet/drop-ins/haproxy.conf", "/etc/sysctl.d/60-knet.conf",
        "/usr/share/man/man1/knetctl.1.gz", "/usr/share/man/man5/knet_comm.conf.5.gz", "/usr/share/man/man8/knetd.8.gz",
        "/usr/share/bash-completion/completions/knetctl", "/usr/share/zsh/site-functions/_knetctl",
        "/usr/share/fish/vendor_completions.d/knetctl.fish",
        "/etc/logrotate.d/knet", "/etc/rsyslog.d/knet_rsyslog.conf", "/usr/lib/tmpfiles.d/knet.conf",
        *(f"/usr/share/knet/profiles/{name}" for name in os.listdir(os.path.join(ROOT, "conf", "profiles"))),
    ):
        assert wanted in files, f"{wanted} is not in the package"


def rpmlint_is_content(packages):
    if not shutil.which("rpmlint"):
        return "rpmlint is not installed"
    said = run("rpmlint", "--config", os.path.join(ROOT, "packaging", "rpmlint.toml"), packages.rpms[0], check=False)
    assert re.search(r" 0 errors, 0 warnings", said), said


def the_deb_says_what_it_is(packages):
    field = lambda name: run("dpkg-deb", "-f", packages.debs[0], name).strip()
    assert re.search(r"librte-eal\d+ \(", field("Depends")), field("Depends")
    assert field("Provides").startswith("knet (") and field("Conflicts") == "knet"
    listing = run("dpkg-deb", "-c", packages.debs[0])
    assert re.search(r"^-rw------- root/root .* \./etc/knet/knet_comm\.conf$", listing, re.M), listing
    assert re.search(r" \./usr/lib64/libknet_frame\.so -> \.\./lib/", listing), listing
    folder = os.path.join(packages.work, "control")
    run("dpkg-deb", "-e", packages.debs[0], folder)
    for script in ("postinst", "prerm", "postrm"):
        with open(os.path.join(folder, script), encoding="utf-8") as file:
            text = file.read()
        assert not re.search(r"(systemctl|invoke-rc.d|service).*\b(re)?start", text), text


def the_texts_of_the_service_are_accepted(packages):
    """The units, tmpfiles and the rest, by the programs that will read them."""
    skipped = []
    with packages.system("texts") as (root, _):
        run("chroot", root, "dpkg", "-i", packages.deb(0))
        inside = lambda *command, **options: run("chroot", root, *command, **options)
        checks = {
            "systemd-analyze": ["systemd-analyze", "verify", "--man=no", "/usr/lib/systemd/system/knetd.service"],
            "systemd-tmpfiles": ["systemd-tmpfiles", "--create", "/usr/lib/tmpfiles.d/knet.conf"],
            "logrotate": ["logrotate", "--debug", "/etc/logrotate.d/knet"],
            "rsyslogd": ["rsyslogd", "-N1", "-f", "/etc/rsyslog.d/knet_rsyslog.conf"],
        }
        for program, command in checks.items():
            if shutil.which(program) or os.path.exists(f"/usr/sbin/{program}"):
                said = inside(*command)
                assert "knetd.service:" not in said, said
            else:
                skipped.append(program)
        run("chroot", root, "getent", "group", "knet")
        assert stat.S_IMODE(os.stat(root + "/run/knet").st_mode) == 0o755
        units = os.path.join(root, "etc/systemd/system")
        for file in glob.glob(root + "/usr/share/knet/drop-ins/*.conf"):
            unit = os.path.basename(file).removesuffix(".conf") + ".service"
            if not os.path.exists(f"{root}/lib/systemd/system/{unit}"):
                skipped.append(unit)
                continue
            os.makedirs(f"{units}/{unit}.d")
            shutil.copy(file, f"{units}/{unit}.d/knet.conf")
            said = inside("systemd-analyze", "verify", "--man=no", unit, check=False)
            assert "knet.conf" not in said and "knetd" not in said, said
    if skipped:
        return f"not here: {', '.join(skipped)}"
    return None


def the_manual_of_knetd_knows_its_options(packages):
    """The page is written by hand."""
    with open(os.path.join(ROOT, "packaging", "man", "knetd.8"), encoding="utf-8") as file:
        page = file.read().replace("\\-", "-")
    said = run(os.path.join(ROOT, "target", PROFILE, "knetd"), "--help")
    options = set(re.findall(r"--[a-z-]+", said)) - {"--help"}
    assert len(options) >= 5, said
    missing = {option for option in options if option not in page}
    assert not missing, f"packaging/man/knetd.8 says nothing of {missing}"
    if not shutil.which("groff"):
        return "groff is not here: the pages are not formatted"
    folder = os.path.join(packages.work, "pages")
    run(os.path.join(ROOT, "target", PROFILE, "knetctl"), "generate", folder)
    for path in [*glob.glob(folder + "/man*/*"), os.path.join(ROOT, "packaging", "man", "knetd.8")]:
        said = run("groff", "-man", "-wall", "-z", "-Tutf8", path)
        assert not said, said
    return None


def the_rpm_runs_in_a_clean_root(packages):
    root = packages.rpm_root = os.path.join(packages.work, "clean")
    os.makedirs(root)
    run("rpm", "--root", root, "--initdb")
    packages.rpm_before = tree(root, ["var/lib/rpm", "usr/lib/sysimage"])
    # DPDK's package on this machine is Debian's, which rpm does not know; everything else it asks for is libc's.
    run("rpm", "--root", root, "-i", "--nodeps", packages.rpms[0])
    run("rpm", "--root", root, "-V", "--nodeps", "knet-rs")
    assert stat.S_IMODE(os.stat(root + "/etc/knet/knet_comm.conf").st_mode) == 0o600
    assert os.readlink(root + "/usr/bin/knet_mp_daemon") == "knetd"
    with packages.system("rpm-run", root) as (system, _):
        packages.demo(system)
        said = run("chroot", system, "knetctl", "check", "/usr/share/knet/profiles/no-nic.json")
        assert ": good; port knet_unix" in said, said
        assert run("chroot", system, "knet_mp_daemon", "--version") == run("chroot", system, "knetd", "--version")


def an_upgrade_of_the_rpm_keeps_an_edited_config(packages):
    root = packages.rpm_root
    config = root + "/etc/knet/knet_comm.conf"
    with open(config, "w", encoding="utf-8") as file:
        file.write(EDITED)
    os.chmod(config, 0o640)
    run("rpm", "--root", root, "-U", "--nodeps", packages.rpms[1])
    with open(config, encoding="utf-8") as file:
        assert file.read() == EDITED
    assert stat.S_IMODE(os.stat(config).st_mode) == 0o640, "the mode is the operator's too"
    with open(config + ".rpmnew", encoding="utf-8") as file:
        assert '"idle": "spin"' in file.read(), "the new default lies beside it"


def the_removal_of_the_rpm_leaves_edited_files_only(packages):
    root = packages.rpm_root
    stats = root + "/etc/knet/run/stats"
    os.makedirs(stats)
    for name in ("knet-persist.json", "knet_persist-20260101000000.json"):
        with open(f"{stats}/{name}", "w", encoding="ascii") as file:
            file.write("{}")
    run("rpm", "--root", root, "-e", "--nodeps", "knet-rs")
    after = tree(root, ["var/lib/rpm", "usr/lib/sysimage"])
    files = {path for path, (kind, _) in after.items() if kind != stat.S_IFDIR and path not in packages.rpm_before}
    edited = {"etc/knet/knet_comm.conf.rpmsave", "etc/knet/knet_comm.conf.rpmnew"}
    assert files == edited, f"left behind: {files ^ edited}"
    with open(root + "/etc/knet/knet_comm.conf.rpmsave", encoding="utf-8") as file:
        assert file.read() == EDITED
    for folder in ("/usr/share/knet", "/var/log/knet", "/etc/knet/run"):
        assert not os.path.exists(root + folder), folder


def the_deb_installs_runs_upgrades_and_goes(packages):
    # What dpkg itself writes about every package, and what is made anew whenever a library comes or goes.
    books = ["var/lib/dpkg", "var/log", "var/cache", "etc/ld.so.cache", "run", "tmp", "proc", "sys", "dev"]
    with packages.system("deb") as (root, upper):
        run("chroot", root, "dpkg", "-i", packages.deb(0))
        config = root + "/etc/knet/knet_comm.conf"
        assert stat.S_IMODE(os.stat(config).st_mode) == 0o600
        packages.demo(root)
        with open(config, "w", encoding="utf-8") as file:
            file.write(EDITED)
        run("chroot", root, "dpkg", "--force-confdef", "--force-confold", "-i", packages.deb(1))
        with open(config, encoding="utf-8") as file:
            assert file.read() == EDITED
        # A program that runs on is not disturbed, and no socket of a host is left by one that ended.
        run("chroot", root, "dpkg", "-r", "knet-rs")
        etc = {path for path in new_files(upper, books)}
        expected = {"etc/" + path for path in (
            "knet/knet_comm.conf", "knet/knet_comm.conf.dpkg-dist", "logrotate.d/knet", "rsyslog.d/knet_rsyslog.conf",
            "sysctl.d/60-knet.conf")}
        assert etc - GROUPS == expected, f"dpkg -r left {(etc - GROUPS) ^ expected}"
        run("chroot", root, "dpkg", "-P", "knet-rs")
        left = new_files(upper, books)
        assert not left - GROUPS, f"dpkg -P left {left - GROUPS}"
        for path in ("etc/group", "etc/gshadow"):
            assert sha(f"{root}/{path}") == sha(f"/{path}"), f"{path} is not what it was"
        assert not os.path.exists(root + "/var/log/knet")


# Written anew by whoever adds and removes a group; compared by content.
GROUPS = {"etc/" + name for name in ("group", "group-", "gshadow", "gshadow-", "passwd", "passwd-", "shadow", "shadow-",
                                     ".pwd.lock", "subuid", "subgid")}


def new_files(upper, without):
    """Files of an overlay's upper layer that this machine does not have in the same form."""
    found = set()
    for path, (kind, content) in tree(upper, without).items():
        if kind == stat.S_IFDIR or kind == stat.S_IFCHR:
            continue
        here = "/" + path
        if kind == stat.S_IFREG and os.path.isfile(here) and sha(here) == content:
            continue
        found.add(path)
    return found


CASES = [
    the_rpm_says_what_it_is,
    rpmlint_is_content,
    the_deb_says_what_it_is,
    the_texts_of_the_service_are_accepted,
    the_manual_of_knetd_knows_its_options,
    the_rpm_runs_in_a_clean_root,
    an_upgrade_of_the_rpm_keeps_an_edited_config,
    the_removal_of_the_rpm_leaves_edited_files_only,
    the_deb_installs_runs_upgrades_and_goes,
]

if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIP package: needs root")
        sys.exit(0)
    for program, package in (("rpmbuild", "rpm"), ("dpkg-deb", "dpkg"), ("redis-server", "redis-server")):
        if not shutil.which(program):
            print(f"SKIP package: {program} is missing ({package})")
            sys.exit(0)
    main("package", CASES, Packages, Packages.close)
