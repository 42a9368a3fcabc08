#!/usr/bin/env python3
"""iperf3 as server and as client under the shim, the other end on the kernel: both ways, both at once, eight streams."""

import json
import os

from harness import CLIENT, SERVER, Lab, main, reached, served, wait_for

PORT = 5201
SECONDS = 5 if os.environ.get("KNET_TEST_LONG") == "1" else 1
# Options and how many data streams they make.
RUNS = (
    ((), 1), (("-R",), 1), (("--bidir",), 2), (("-P", "8"), 8), (("-P", "8", "-R"), 8), (("-l", "64"), 1), (("-M", "1000"), 1),
    (("-C", "cubic", "-N"), 1), (("-n", "20M"), 1),
)


class Iperf3:
    def __init__(self):
        self.lab = Lab()
        for end, address in (("server", SERVER), ("client", CLIENT)):
            self.lab.start(end, "iperf3", "-s", "-B", address, "-p", str(PORT), log=f"iperf3-{end}.log")
            wait_for(f"iperf3 at {address} listens", lambda: self.lab.listens(PORT, address), 15)

    @property
    def processes(self):
        return self.lab.processes

    def measure(self, run, address, options):
        """Bytes that the receivers got."""
        length = () if "-n" in options else ("-t", str(SECONDS))
        out = run("iperf3", "-c", address, "-p", str(PORT), "--connect-timeout", "5000", "-J", *length, *options, seconds=60)
        report = json.loads(out)
        assert "error" not in report, report["error"]
        ends = [report["end"][name] for name in ("sum_received", "sum_received_bidir_reverse") if name in report["end"]]
        return [end["bytes"] for end in ends]


def runs(iperf3, run, address, proof, what):
    for options, streams in RUNS:
        with proof(iperf3.lab, streams + 1):
            received = iperf3.measure(run, address, options)
        assert len(received) == 1 + ("--bidir" in options), received
        # Loss or a stall would show: a second is many times this, also for the debug build on a busy machine.
        least = 500_000 if options == ("-l", "64") else 2_000_000
        assert all(count >= least for count in received), (options, received)
        print(f"iperf3 {what} {' '.join(options)}: {[round(count / 1e6) for count in received]} MB", flush=True)


def as_server(iperf3):
    runs(iperf3, iperf3.lab.client, SERVER, served, "server")


def as_client(iperf3):
    runs(iperf3, iperf3.lab.shimmed, CLIENT, reached, "client")


def a_test_that_is_broken_off(iperf3):
    """The client is killed in the middle of it, ten times: the server goes on."""
    with served(iperf3.lab, 20):
        for _ in range(10):
            iperf3.lab.client("timeout", "-s", "KILL", "0.3", "iperf3", "-c", SERVER, "-P", "8", "-t", "10", check=False)
        wait_for("a test runs to its end", lambda: "receiver" in iperf3.lab.client("iperf3", "-c", SERVER, "-t", "1", check=False), 30)


if __name__ == "__main__":
    main("iperf3", [as_server, as_client, a_test_that_is_broken_off], Iperf3, lambda iperf3: iperf3.lab.close())
