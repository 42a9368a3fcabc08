#!/usr/bin/env python3
"""Redis' own tools under the shim as clients of a Redis under the shim: two hosts, no kernel TCP between them."""

import os
import sys

from harness import SERVER, Lab, main, wait_for


class Both:
    def __init__(self, device):
        self.lab = Lab(device=device)
        self.server = self.lab.start(
            "server", "redis-server", "--port", "6379", "--bind", SERVER, "--protected-mode", "no", "--save", "", "--dir",
            self.lab.work, log="redis.log",
        )
        wait_for("redis answers", lambda: "PONG" in self.cli("ping"), 20)

    @property
    def processes(self):
        return self.lab.processes

    def cli(self, *words):
        return self.lab.client("timeout", "10", "redis-cli", "-h", SERVER, *words, check=False)


def redis_cli(both):
    accepted = both.lab.stats().get("flows_accepted", 0)
    assert both.cli("set", "key", "value").strip() == "OK"
    assert both.cli("get", "key").strip() == "value"
    assert both.lab.stats().get("flows_accepted", 0) >= accepted + 2


def redis_benchmark(both):
    accepted = both.lab.stats().get("flows_accepted", 0)
    out = both.lab.client(
        "redis-benchmark", "-h", SERVER, "-t", "set,get", "-n", "20000", "-c", "50", "-q", seconds=120
    )
    assert out.count("requests per second") >= 2, out
    assert both.lab.stats().get("flows_accepted", 0) >= accepted + 100


def redis_benchmark_pipelined(both):
    out = both.lab.client(
        "redis-benchmark", "-h", SERVER, "-t", "set,get", "-n", "50000", "-c", "20", "-P", "16", "-d", "1000", "-q", seconds=120
    )
    assert out.count("requests per second") >= 2, out


if __name__ == "__main__":
    # Without root over a unix socket; with it also over vhost and virtio_user, which is DPDK on both ends.
    device = os.environ.get("KNET_TEST_DEVICE", "unix")
    if device == "vhost" and os.getuid() != 0:
        print("SKIP clients::vhost: needs root for its network namespaces")
        sys.exit(0)
    main(f"clients_{device}", [redis_cli, redis_benchmark, redis_benchmark_pipelined], lambda: Both(device), lambda both: both.lab.close())
