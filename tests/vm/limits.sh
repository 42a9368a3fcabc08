#!/bin/bash
# The case of 100 000 connections in a machine in which root may raise limits. What it prints is for the test: its own lines
# and those that begin with VM.
fail() { echo "VM fail $*"; exit 1; }
. /limits.env
ip link set lo up
modprobe veth || fail "no veth"
# What 100 000 clients of the kernel's need: room for a burst, and for those that are closed and wait for the other end.
sysctl -q -w net.core.somaxconn=65535 net.core.netdev_max_backlog=100000 net.ipv4.tcp_max_orphans=200000 fs.file-max=1000000
echo "VM limit $(ulimit -Hn), CPUs $(nproc), $(awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo) MiB ($(cut -d. -f1 /proc/uptime) s)"
cd "$ROOT" && tests/apps/limits.py one_descriptor_a_connection || fail "the case"
echo "VM memory left $(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MiB ($(cut -d. -f1 /proc/uptime) s)"
