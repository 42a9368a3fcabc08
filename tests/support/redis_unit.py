#!/usr/bin/env python3
"""Runs a command in the confines of Debian 12's redis-server.service, as far as one process can make them for itself.

usage: redis_unit.py [--refuse ERRNO] [--noexec FILE]... CMD...

User, capabilities, no new privileges, and the filters of system calls as systemd 252 makes them of the unit: whatever
is not in the list kills the process, unless --refuse names an errno (SystemCallErrorNumber=). --noexec is NoExecPaths=
for a file. Needs root and libseccomp, of which it asks the numbers.
"""

import ctypes
import os
import pwd
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "..", "fixtures", "redis_unit_calls.txt")
UNIT_SETS = (("@default", "@system-service"), ("@privileged", "@resources"))

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NE, LT, GE, MASKED = 1, 2, 5, 7  # of libseccomp's comparisons
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080)


def members(name):
    """The names in a set of systemd's, as this machine's systemd knows it."""
    out = subprocess.run(["systemd-analyze", "syscall-filter", name], stdout=subprocess.PIPE, text=True, check=True).stdout
    names = set()
    for word in map(str.strip, out.splitlines()[1:]):
        if word.startswith("@"):
            names |= members(word)
        elif word and not word.startswith("#"):
            names.add(word)
    return names


def calls_of_systemd():
    allowed, removed = (set().union(*map(members, names)) for names in UNIT_SETS)
    return sorted(allowed - removed)


def calls():
    with open(TABLE, encoding="ascii") as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


class Comparison(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class Filter:
    """One seccomp filter."""

    library = None

    def __init__(self, otherwise):
        if Filter.library is None:
            Filter.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
            Filter.library.seccomp_init.restype = ctypes.c_void_p
            Filter.library.seccomp_init.argtypes = [ctypes.c_uint32]
        self.context = ctypes.c_void_p(self.library.seccomp_init(otherwise))
        assert self.context, "seccomp_init"

    def rule(self, action, name, *comparisons):
        number = self.library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return  # of another machine
        list_ = (Comparison * max(1, len(comparisons)))(*(Comparison(*one) for one in comparisons))
        code = self.library.seccomp_rule_add_array(self.context, ctypes.c_uint32(action), number, len(comparisons), list_)
        assert code in (0, -17, -22, -33) or action == ALLOW, (name, code)

    def load(self):
        code = self.library.seccomp_load(self.context)
        assert code == 0, os.strerror(-code)
        self.library.seccomp_release(self.context)


def filters(refusal):
    """SystemCallFilter=, RestrictAddressFamilies=, MemoryDenyWriteExecute=, RestrictNamespaces=, RestrictRealtime=,
    RestrictSUIDSGID=, LockPersonality= of the unit."""
    made = []
    one = Filter(KILL_PROCESS if refusal is None else ERRNO | refusal)
    for name in calls():
        one.rule(ALLOW, name)
    # What this launcher does last.
    made.append(one)
    one = Filter(ALLOW)
    allowed = sorted({socket.AF_INET, socket.AF_INET6, socket.AF_UNIX})
    for family in range(allowed[0], allowed[-1]):
        if family not in allowed:
            one.rule(ERRNO | EAFNOSUPPORT, "socket", (0, 4, family, 0))
    one.rule(ERRNO | EAFNOSUPPORT, "socket", (0, LT, allowed[0], 0))
    one.rule(ERRNO | EAFNOSUPPORT, "socket", (0, 6, allowed[-1], 0))
    made.append(one)
    one = Filter(ALLOW)
    one.rule(ERRNO | EPERM, "mmap", (2, MASKED, 6, 6))  # PROT_EXEC | PROT_WRITE
    for name in ("mprotect", "pkey_mprotect"):
        one.rule(ERRNO | EPERM, name, (2, MASKED, 4, 4))
    one.rule(ERRNO | EPERM, "shmat", (2, MASKED, 0o100000, 0o100000))
    made.append(one)
    one = Filter(ALLOW)
    for flag in NEW_NAMESPACES:
        one.rule(ERRNO | EPERM, "unshare", (0, MASKED, flag, flag))
        one.rule(ERRNO | EPERM, "clone", (0, MASKED, flag, flag))
        one.rule(ERRNO | EPERM, "setns", (1, MASKED, flag, flag))
    one.rule(ERRNO | EPERM, "setns", (1, 4, 0, 0))
    one.rule(ERRNO | ENOSYS, "clone3")
    made.append(one)
    one = Filter(ALLOW)
    for policy in (1, 2, 6):
        one.rule(ERRNO | EPERM, "sched_setscheduler", (1, 4, policy, 0))
    for name, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("creat", 1)):
        for bit in (0o4000, 0o2000):
            one.rule(ERRNO | EPERM, name, (place, MASKED, bit, bit))
    one.rule(ERRNO | EPERM, "personality", (0, NE, 0, 0))
    made.append(one)
    return made


def main():
    words = sys.argv[1:]
    refusal, hidden = None, []
    while words and words[0].startswith("--"):
        word = words.pop(0)
        if word == "--refuse":
            refusal = int(words.pop(0))
        elif word == "--noexec":
            hidden.append(words.pop(0))
        else:
            sys.exit(__doc__)
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*arguments):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    for path in hidden:
        subprocess.run(["mount", "--bind", path, path], check=True)
        subprocess.run(["mount", "-o", "remount,bind,noexec", path], check=True)
    for capability in range(64):
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP; EINVAL behind the last one
            break
    made = filters(refusal)
    try:
        user = pwd.getpwnam("redis")
        uid, gid = user.pw_uid, user.pw_gid
    except KeyError:
        uid = gid = 65534
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.umask(0o007)
    prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    # The narrow ones first: the list does not hold seccomp(2).
    for one in made[1:] + made[:1]:
        one.load()
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
