#!/usr/bin/env python3
"""What happens when the link, the interface or the peer of a running server breaks. Needs root."""

import contextlib
import os
import socket
import subprocess
import threading
import time

from faults_parts import connects, echoes, knetctl, lines, main_of, said, serves
from harness import CLIENT, SERVER, wait_for


def link_down_and_up(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    for end in ("c", "s"):
        faults.ip(end, "link", "set", "veth0", "down")
        peer.sendall(b"abc")
        time.sleep(1)
        faults.ip(end, "link", "set", "veth0", "up")
        got = b""
        peer.settimeout(20)
        while len(got) < 3:
            got += peer.recv(10)
        echoes(peer)
    echoes(faults.lab.connect(faults.port, 20))
    peer.close()
    faults.lab.end(server)


def frames_that_a_path_loses_come_again_soon(faults):
    """The client's kernel throws away one frame in thirteen, which is each of an answer's in turn. By time-outs of a second, 300 answers would take half a minute."""
    server = faults.echo()
    peer = connects(faults)
    peer.settimeout(30)
    inside = ["ip", "netns", "exec", f"knet-{faults.lab.name}-c", "nft"]
    rules = "add table ip loss; add chain ip loss in { type filter hook input priority 0; }; add rule ip loss in numgen inc mod 13 0 drop"
    subprocess.run([*inside, rules], check=True)
    times = []
    try:
        for number in range(300):
            begin = time.monotonic()
            question = bytes([number % 256]) * 4096
            peer.sendall(question)
            got = b""
            while len(got) < len(question):
                got += peer.recv(len(question))
            assert got == question
            times.append(time.monotonic() - begin)
    finally:
        subprocess.run([*inside, "delete table ip loss"], check=True)
    stats = faults.lab.stats()
    assert stats.get("segments_mended", 0) + stats.get("peers_asked", 0) > 10, stats
    late = [round(took, 2) for took in times if took > 0.9]
    assert len(late) <= 3, late
    peer.close()
    faults.lab.end(server)


SENDERS = r"""
import errno, os, socket, sys, threading, time
l = socket.socket()
l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind((sys.argv[1], int(sys.argv[2])))
l.listen(64)
def say(*words): os.write(1, (" ".join(map(str, words)) + "\n").encode())
def sends(c, pause):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000)
    since = time.monotonic()
    try:
        while True:
            since = time.monotonic()
            c.sendall(b"x" * 100_000 if pause == 0 else b"x")
            time.sleep(pause)
    except OSError as error:
        say("ended", errno.errorcode[error.errno], round(time.monotonic() - since))
say("listening")
for pause in [0] * 24 + [0.1, 0.5, 1] * 2:
    threading.Thread(target=sends, args=(l.accept()[0], pause)).start()
say("sending")
"""


def a_peer_that_falls_silent_under_load_is_given_up(faults):
    """TCP_USER_TIMEOUT of 3 s, bulk and trickle: over a link that is down, where the port soon takes nothing any more, and to a
    station that does not hear us."""
    for silence, speech in (
        (("link", "set", "veth0", "down"), ("link", "set", "veth0", "up")),
        (("addr", "del", f"{CLIENT}/24", "dev", "veth0"), ("addr", "add", f"{CLIENT}/24", "dev", "veth0")),
    ):
        faults.port += 10
        server = faults.python(SENDERS, SERVER, faults.port, log="senders.log")
        said(server, "listening")
        peers = [faults.lab.connect(faults.port) for _ in range(30)]
        said(server, "sending")
        reading = [threading.Thread(target=drains, args=(peer, ), daemon=True) for peer in peers]
        for thread in reading:
            thread.start()
        time.sleep(1)
        faults.ip("c", *silence)
        try:
            wait_for("all are given up", lambda: sum("ended" in line for line in lines(server)) == len(peers), 20)
        finally:
            faults.ip("c", *speech)
            for peer in peers:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
        ends = [line.split() for line in lines(server) if line.startswith("ended")]
        assert all(name in ("ETIMEDOUT", "EHOSTUNREACH") and int(seconds) <= 8 for _, name, seconds in ends), ends
        server.wait(10)
        for peer in peers:
            peer.close()


def drains(peer):
    with contextlib.suppress(OSError):
        while peer.recv(1 << 20):
            pass


def mtu_of_the_interface_changed(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    try:
        for mtu in ("1000", "1500"):
            for end in ("s", "c"):
                faults.ip(end, "link", "set", "veth0", "mtu", mtu)
            echoes(peer, b"z" * 3000)
            echoes(faults.lab.connect(faults.port), b"z" * 100_000)
    finally:
        for end in ("s", "c"):
            faults.ip(end, "link", "set", "veth0", "mtu", "1500")
    peer.close()
    faults.lab.end(server)


def interface_renamed_while_running(faults):
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    try:
        faults.ip("s", "link", "set", "veth0", "down")
        faults.ip("s", "link", "set", "veth0", "name", "other0")
        faults.ip("s", "link", "set", "other0", "up")
        peer.settimeout(20)
        echoes(peer)
        echoes(connects(faults))
    finally:
        faults.ip("s", "link", "set", "other0", "down", check=False)
        faults.ip("s", "link", "set", "other0", "name", "veth0", check=False)
        faults.ip("s", "link", "set", "veth0", "up")
    echoes(peer)
    peer.close()
    faults.lab.end(server)


CONNECTS = r"""
import socket, sys, time
for address in sys.argv[1:]:
    host, port = address.split(":")
    s = socket.socket()
    begin = time.monotonic()
    try:
        s.connect((host, int(port)))
        print("connected", flush=True)
    except OSError as error:
        print(error.errno, round(time.monotonic() - begin, 1), flush=True)
"""


def connect_answers_as_the_network_does(faults):
    """An unanswered neighbour: EHOSTUNREACH after 3 s. A closed port: ECONNREFUSED at once."""
    client = faults.python(CONNECTS, "10.77.0.77:80", f"{CLIENT}:9", log="connects.log")
    client.wait(30)
    out = lines(client)
    unreachable, refused = (line.split() for line in out)
    assert unreachable[0] == "113" and 2.5 <= float(unreachable[1]) <= 4.5, out
    assert refused[0] == "111" and float(refused[1]) < 0.5, out


def the_address_on_a_kernel_interface_is_refused(faults):
    faults.no_host()
    faults.ip("c", "link", "set", "veth0", "up")
    faults.ip("s", "addr", "add", f"{SERVER}/24", "dev", "veth0")
    try:
        environment = {"KNET_CONF": f"{faults.lab.state}/server.conf", "KNET_RUN_DIR": f"{faults.lab.state}/run-s"}
        listens = "import socket,sys; s=socket.socket(); s.bind((sys.argv[1], 7999)); s.listen(1)"
        out = subprocess.run(
            ["ip", "netns", "exec", f"knet-{faults.lab.name}-s", knetctl(), "run", "--", "python3", "-c", listens, SERVER],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30,
            check=False,
        ).stdout
    finally:
        faults.ip("s", "addr", "del", f"{SERVER}/24", "dev", "veth0")
    assert f"ip addr del {SERVER}/24 dev veth0" in out, out
    faults.no_host()


def an_interface_with_other_addresses_is_refused_unless_exclusive(faults):
    faults.no_host()
    faults.ip("s", "addr", "add", "192.0.2.1/24", "dev", "veth0")
    faults.ip("s", "route", "add", "default", "via", "192.0.2.9", "dev", "veth0")
    path = f"{faults.lab.state}/server.conf"
    with open(path, encoding="ascii") as file:
        text = file.read()
    listens = (
        "import socket,sys; s=socket.socket()\n"
        "try:\n  s.bind((sys.argv[1], 7999)); s.listen(1); print('listening')\n"
        "except OSError as error: print('errno', error.errno)"
    )
    try:
        server = faults.python(listens, SERVER, log="exclusive.log")
        server.wait(20)
        out = lines(server)
        assert "errno 99" in out, out
        told = [line for line in out if line.startswith("knet:")]
        assert len(told) == 1 and "veth0" in told[0] and "exclusive" in told[0], out
        with open(path, "w", encoding="ascii") as file:
            file.write(text.replace('"netdev"', '"exclusive": true, "netdev"'))
        server = faults.python(listens, SERVER, log="exclusive.log")
        server.wait(20)
        assert lines(server) == ["listening"], lines(server)
    finally:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        faults.ip("s", "route", "del", "default", check=False)
        faults.ip("s", "addr", "del", "192.0.2.1/24", "dev", "veth0")
        faults.no_host()


def the_interface_is_deleted_while_running(faults):
    """No connection can go on: all are reset at once and the host ends; with the interface back a new one serves."""
    server = faults.echo()
    peer = connects(faults)
    echoes(peer)
    host = faults.host()
    faults.ip("s", "link", "del", "veth0")
    said(server, "lost 104", 5)
    assert server.poll() is None
    wait_for("the host ends", lambda: host not in faults.pids("knetd"), 5)
    with open(f"{faults.lab.state}/server-host.log", encoding="utf-8", errors="replace") as log:
        told = log.read()
    faults.lab.end(server)
    peer.close()
    subprocess.run(
        ["ip", "link", "add", "veth0", "netns", f"knet-{faults.lab.name}-s", "type", "veth", "peer", "name", "veth0", "netns",
         f"knet-{faults.lab.name}-c"], check=True)
    subprocess.run(
        ["ip", "netns", "exec", f"knet-{faults.lab.name}-c", "ethtool", "-K", "veth0", "tx", "off"], check=True,
        stdout=subprocess.DEVNULL)
    faults.ip("s", "link", "set", "veth0", "up")
    faults.ip("c", "addr", "add", f"{CLIENT}/24", "dev", "veth0")
    faults.ip("c", "link", "set", "veth0", "up")
    assert [line for line in lines(server) if line.startswith("knet:") and "has gone" in line], lines(server)
    assert "veth0" in told and "gone" in told, told[-500:]
    # The old host has the old interface: a server started now must not be given to it.
    server = faults.echo_again()
    assert faults.host() != host
    serves(faults)
    faults.lab.end(server)


CASES = [
    link_down_and_up, frames_that_a_path_loses_come_again_soon, a_peer_that_falls_silent_under_load_is_given_up, mtu_of_the_interface_changed,
    interface_renamed_while_running, connect_answers_as_the_network_does,
    the_address_on_a_kernel_interface_is_refused, an_interface_with_other_addresses_is_refused_unless_exclusive,
    the_interface_is_deleted_while_running,
]

if __name__ == "__main__":
    main_of("faults_link", CASES)
