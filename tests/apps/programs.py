#!/usr/bin/env python3
"""Which programs are tested today: some each time, three more by the day of the year, with KNET_TEST_LONG=1 all.

Prints the names: of the runners in this folder, and of what scripts/deps.sh installs for them.
"""

import datetime
import os

EACH_TIME = ("nginx", "memcached", "curl", "python", "untouched", "limits")
BY_DAY = (
    "nginx_workers", "haproxy", "iperf3", "postgres", "web_load", "node", "java", "gunicorn", "mosquitto", "relays", "rsync", "wget",
    "varnish", "cpython",
)
A_DAY = 3


def of_day(day):
    """The programs of a day: every one comes up in turn."""
    first = day * A_DAY % len(BY_DAY)
    return [BY_DAY[(first + n) % len(BY_DAY)] for n in range(A_DAY)]


def today():
    if os.environ.get("KNET_TEST_LONG") == "1":
        return [*EACH_TIME, *BY_DAY]
    day = datetime.datetime.now(datetime.timezone.utc).timetuple().tm_yday
    return [*EACH_TIME, *of_day(int(os.environ.get("KNET_TEST_DAY", day)))]


if __name__ == "__main__":
    print(*today())
