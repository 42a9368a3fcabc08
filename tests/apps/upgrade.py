#!/usr/bin/env python3
"""The library is another build than what runs: a program that executes the new one, beside a host of the old one. Needs root."""

import os
import shutil
import subprocess

from faults_parts import connects, echoes, knetctl, lines, main_of, said, serves
from harness import SERVER

# Accepts one connection, then executes what is given with the library that is given. The number of the connection comes last.
BEFORE = r"""
import os, socket, sys
address, port, library, code = sys.argv[1:]
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((address, int(port)))
l.listen(16)
print("listening", flush=True)
c, _ = l.accept()
c.set_inheritable(True)
os.environ["LD_PRELOAD"] = library
os.execvp("python3", ["python3", "-u", "-c", code, address, port, str(c.fileno())])
"""

# Says what it can do with the connection, then listens where the program before it did, and on loopback.
AFTER = r"""
import errno, os, socket, sys, time
address, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def tries(what, call):
    try:
        print(what, call(), flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
tries("write", lambda: os.write(number, b"x"))
def listen(address):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen(16)
    return s
def here():
    s = listen(address)
    return "served"
def loopback():
    s = listen("127.0.0.1")
    c = socket.create_connection(("127.0.0.1", port))
    s.accept()[0].sendall(b"yes")
    return c.recv(3).decode()
tries("listen", here)
tries("loopback", loopback)
print("done", flush=True)
time.sleep(60)
"""


def version():
    said = subprocess.run([os.path.join(os.path.dirname(knetctl()), "knetd"), "--version"], stdout=subprocess.PIPE, check=True)
    return said.stdout.split()[1].decode()


def library(faults, folder, other):
    """A copy of the library, which is another build when `other` says so."""
    path = os.path.join(faults.lab.work, folder)
    os.makedirs(path, exist_ok=True)
    build = os.path.dirname(knetctl())
    copy = os.path.join(path, "libknet_frame.so")
    with open(os.path.join(build, "libknet_frame.so"), "rb") as file:
        binary = file.read()
    # The build's version is a text in the binary: another one of the same length.
    ours = version().encode()
    assert ours in binary
    with open(copy, "wb") as file:
        file.write(binary.replace(ours, b"9" + ours[1:]) if other else binary)
    shutil.copy(os.path.join(build, "knetd"), path)
    return copy


def executes(faults, copy):
    """A client of the program before, and the program after it has executed the one behind `copy`."""
    faults.port += 10
    server = faults.python(BEFORE, SERVER, faults.port, copy, AFTER, log="upgrade.log")
    said(server, "listening")
    peer = connects(faults)
    peer.settimeout(20)
    said(server, "done", 30)
    return server, peer, [line for line in lines(server) if line not in ("listening", "done")]


def another_build_is_executed(faults):
    """One line about what was handed over, one about the host; both name both builds and where they lie. Then the kernel."""
    other_program = faults.echo("old.log")
    kept, other_port = connects(faults), faults.port
    host = faults.host()
    copy = library(faults, "new", True)
    server, peer, out = executes(faults, copy)
    ours, theirs = version(), "9" + version()[1:]
    told = [line for line in out if line.startswith("knet:")]
    assert len(told) == 2, out
    for line in told:
        assert ours in line and theirs in line and copy in line, line
    assert os.path.join(os.path.dirname(knetctl()), "libknet_frame.so") in told[0], told[0]
    assert os.path.join(os.path.dirname(knetctl()), "knetd") in told[1], told[1]
    said_by_it = [line for line in out if not line.startswith("knet:")]
    assert said_by_it == ["write EPIPE", "listen EADDRNOTAVAIL", "loopback yes"], said_by_it
    # What nobody has any more ends; what the host's other program has does not.
    try:
        assert peer.recv(1) == b""
    except ConnectionResetError:
        pass
    echoes(kept)
    faults.port, mine = other_port, faults.port
    serves(faults)
    faults.port = mine
    assert faults.host() == host
    faults.lab.end(server)
    kept.close()
    faults.lab.end(other_program)


def the_same_build_from_elsewhere_goes_on(faults):
    """The counter-proof: a copy of the same build at another path takes everything over, and says nothing."""
    server, peer, out = executes(faults, library(faults, "same", False))
    assert peer.recv(1) == b"x"
    assert [line for line in out if line.startswith("knet:")] == [], out
    assert "write 1" in out and "listen served" in out, out
    faults.lab.end(server)


if __name__ == "__main__":
    main_of("upgrade", [another_build_is_executed, the_same_build_from_elsewhere_goes_on])
