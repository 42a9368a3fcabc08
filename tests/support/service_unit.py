#!/usr/bin/env python3
"""Starts a service as systemd would: reads the unit and a drop-in, makes its confines, becomes its program.

usage: service_unit.py UNIT-FILE [DROP-IN...]

Understood is what the units of Debian's servers say. A setting that is not known here ends the launcher, so that none is
left out unnoticed. Needs root and libseccomp; the caller's mount namespace is left alone.
"""

import ctypes
import grp
import os
import pwd
import re
import shlex
import sys

from redis_unit import filters

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITIES = {"CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_RESOURCE": 24}
# What has no meaning for a program that is started by hand, or is a mask over folders that no test looks at.
WITHOUT_EFFECT = {
    "Type", "PIDFile", "TimeoutStopSec", "Restart", "ExecStartPre", "ExecReload", "ExecStop", "KillMode", "LimitNOFILE",
    "SuccessExitStatus", "ProtectHome", "ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs",
    "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "RemoveIPC", "SystemCallArchitectures",
    "RuntimeDirectoryMode", "BindReadOnlyPaths", "EnvironmentFile",
}
FILTERS = {
    "SystemCallFilter": 0, "RestrictAddressFamilies": 1, "MemoryDenyWriteExecute": 2, "RestrictNamespaces": 3,
    "RestrictRealtime": 4, "RestrictSUIDSGID": 4, "LockPersonality": 4,
}
KNOWN = {
    "ExecStart", "User", "Group", "SupplementaryGroups", "Environment", "UMask", "RuntimeDirectory", "PrivateTmp",
    "PrivateDevices", "ProtectSystem", "ReadWritePaths", "ReadWriteDirectories", "NoExecPaths", "ExecPaths",
    "CapabilityBoundingSet", "NoNewPrivileges", "PrivateUsers",
}
libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def read(paths):
    """The settings of [Service], each a list of its values."""
    service = {}
    for path in paths:
        section = None
        with open(path, encoding="utf-8") as file:
            for line in file.read().replace("\\\n", " ").splitlines():
                line = line.strip()
                if not line or line[0] in "#;":
                    continue
                if line[0] == "[":
                    section = line
                elif section == "[Service]":
                    key, _, value = line.partition("=")
                    service.setdefault(key, []).append(value)
    unknown = set(service) - WITHOUT_EFFECT - set(FILTERS) - KNOWN
    if unknown:
        sys.exit(f"service_unit: not known here: {', '.join(sorted(unknown))}")
    return service


# sys/mount.h; the command mount(8) could not be executed any more behind NoExecPaths=.
REMOUNT, BIND, REC, PRIVATE, DETACH = 32, 4096, 16384, 1 << 18, 2
MOUNT_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8}


def mount(source, target, kind, flags=0, data=None):
    text = lambda word: word.encode() if word else None
    checked(libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)), f"mount {target}")


def bind(source, target, flags=0):
    mount(source, target, None, BIND | flags)


def mounts():
    """Mount points of this namespace, and their flags."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [(fields[4].encode().decode("unicode_escape"), fields[5].split(",")) for fields in map(str.split, file)]


def below(path, folders):
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def folders(service, user):
    """The view of the file system."""
    on = lambda key: service.get(key, [""])[-1] in ("true", "yes", "strict", "full")
    paths = lambda *keys: [word.lstrip("-+") for key in keys for value in service.get(key, []) for word in value.split()]
    checked(libc.unshare(CLONE_NEWNS), "unshare")
    mount(None, "/", None, REC | PRIVATE)
    writable = paths("ReadWritePaths", "ReadWriteDirectories")
    for name in paths("RuntimeDirectory"):
        folder = f"/run/{name}"
        os.makedirs(folder, exist_ok=True)
        os.chown(folder, user.pw_uid, user.pw_gid)
        writable.append(folder)
    executable = [os.path.realpath(path) for path in paths("ExecPaths")]
    for path in {os.path.realpath(path) for path in writable} | set(executable):
        if os.path.exists(path):
            bind(path, path)
    if on("PrivateTmp"):
        for folder in ("/tmp", "/var/tmp"):
            mount("tmpfs", folder, "tmpfs", 0, "mode=1777")
            writable.append(folder)
    if on("PrivateDevices"):
        aside = "/run/.devices"
        os.makedirs(aside, exist_ok=True)
        bind("/dev", aside, REC)
        mount("tmpfs", "/dev", "tmpfs", MOUNT_FLAGS["noexec"], "mode=755")
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            with open(f"/dev/{name}", "w", encoding="ascii"):
                bind(f"{aside}/{name}", f"/dev/{name}")
        os.makedirs("/dev/shm")
        bind(f"{aside}/shm", "/dev/shm")
        checked(libc.umount2(aside.encode(), DETACH), "umount")
    strict = service.get("ProtectSystem", [""])[-1]
    read_only = {"strict": ["/"], "full": ["/usr", "/etc"], "": []}[strict]
    for folder in read_only:
        if folder != "/":
            bind(folder, folder, REC)
    closed = paths("NoExecPaths")
    free = ["/dev", "/proc", "/sys"]
    writable = [os.path.realpath(path) for path in writable]
    # Of two mounts at one place the later one is seen.
    for place, flags in dict(mounts()).items():
        wanted = [flag for flag in flags if flag in MOUNT_FLAGS]
        if below(place, read_only) and not below(place, writable + free):
            wanted.append("ro")
        if below(place, closed) and not below(place, executable + free):
            wanted.append("noexec")
        if set(wanted) - set(flags):
            mount(None, place, None, REMOUNT | BIND | sum(MOUNT_FLAGS[flag] for flag in set(wanted)))


def own_users(user):
    """PrivateUsers=: a user namespace that knows root and the service's user; the parent writes its map."""
    ready, go = os.pipe(), os.pipe()
    here = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.read(ready[0], 1)
        for kind, number in (("uid", user.pw_uid), ("gid", user.pw_gid)):
            with open(f"/proc/{here}/{kind}_map", "w", encoding="ascii") as file:
                file.write(f"0 0 1\n{number} {number} 1\n")
        os.write(go[1], b"x")
        os._exit(0)
    checked(libc.unshare(CLONE_NEWUSER), "unshare user")
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os.waitpid(helper, 0)


def main():
    service = read(sys.argv[1:])
    last = lambda key, otherwise="": service.get(key, [otherwise])[-1]
    user = pwd.getpwnam(last("User", "root"))
    group = grp.getgrnam(last("Group")).gr_gid if last("Group") else user.pw_gid
    wanted = [grp.getgrnam(name).gr_gid for value in service.get("SupplementaryGroups", []) for name in value.split()]
    folders(service, user)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": user.pw_dir, "LANG": "C.UTF-8"}
    for value in service.get("Environment", []):
        environment.update(word.split("=", 1) for word in shlex.split(value))
    command = shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda name: environment.get(name[1], ""), last("ExecStart")))
    os.umask(int(last("UMask", "022"), 8))
    made = filters(None)
    chosen = sorted({FILTERS[key] for key in service if key in FILTERS}, reverse=True)
    os.setgroups([*os.getgrouplist(user.pw_name, group), *wanted])
    if last("PrivateUsers") == "true":
        own_users(user)
    if "CapabilityBoundingSet" in service:
        kept = {CAPABILITIES[name] for value in service["CapabilityBoundingSet"] for name in value.split()}
        for capability in range(64):
            # EINVAL behind the last one.
            if capability not in kept and libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break
    if user.pw_uid != 0:
        os.setresgid(group, group, group)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    if last("NoNewPrivileges") == "true" or chosen:
        checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # The list of calls last: it does not hold seccomp(2).
    for which in chosen:
        made[which].load()
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main()
