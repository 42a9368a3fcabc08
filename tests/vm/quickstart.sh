#!/bin/bash
# K-NET's quick start, step by step, as its users follow it, with the files of the package; inside the virtual machine.
# Lines that begin with VM are for the test.
fail() { echo "VM fail $*"; exit 1; }
step() { echo "VM step $* ($(cut -d. -f1 /proc/uptime) s)"; }
ip link set lo up

# 1. The host is fit: ASLR, the driver.
[ "$(cat /proc/sys/kernel/randomize_va_space)" = 2 ] || fail "no ASLR"
# 2. The package is installed.
[ -e /usr/lib64/libknet_frame.so ] && [ -e /etc/knet/knet_comm.conf ] || fail "no package"
# 4. Hugepages: transparent ones off, pages reserved, mounted.
echo never >/sys/kernel/mm/transparent_hugepage/enabled
mkdir -p /mnt/huge
mount -t hugetlbfs -o pagesize=2M hugetlbfs /mnt/huge || fail "hugetlbfs"
grep -i hugepages_free /proc/meminfo

quickstart() { # BDF MAC IP DRIVER KERNEL-DRIVER BIND UNBIND
  local bdf=$1 mac=$2 ip=$3 driver=$4 kernel=$5 name redis cpu= comm
  step "port $bdf"
  # 3. The port: its kernel name, its MAC.
  name=$(ls "/sys/bus/pci/devices/$bdf/net" "/sys/bus/pci/devices/$bdf"/virtio*/net 2>/dev/null | grep -v : | grep . | head -n 1)
  [ -n "$name" ] || fail "$bdf has no kernel interface"
  [ "$(cat "/sys/class/net/$name/address")" = "$mac" ] || fail "the MAC of $name"
  # 6. The config as the guide shows it, remarks included.
  cat >/etc/knet/knet_comm.conf <<CONF
{
    "version": "1.4.0",
    "common": {
    "mode": 0, #1. run mode, 0 is one process
    "log_level": "WARNING",
    "ctrl_vcpu_nums": 1, "ctrl_ring_per_vcpu": 1, "ctrl_vcpu_ids": [0],
    "zcopy_enable": 0, "cothread_enable": 0
    },
    "interface": {
    "user_bond_enable": 0, "user_bond_mode": 4,
    "bdf_nums": [
        "$bdf"
    ], # 2. the BDF found
    "mac": "$mac", # 3. MAC of the port
    "ip": "$ip",        # 4. its address
    "netmask": "255.255.255.0", "gateway": "0.0.0.0", "mtu": 1500
    },
    "hw_offload": { "tso": 0, "lro": 0, "tcp_checksum": 0, "bifur_enable": 0 },
    "proto_stack": { "max_mbuf": 20480, "max_tcpcb": 4096, "max_udpcb": 4096, "msl_time": 1 },
    "dpdk": {
    "core_list_global": "1",  # 5. the core of the data plane
    "queue_num": 1, "tx_cache_size": 256, "rx_cache_size": 256,
    "socket_mem": "--socket-mem=128", # 6. MB per NUMA node
    "socket_limit": "--socket-limit=128",
    "external_driver": "-d$driver",
    "telemetry": 0, "huge_dir": "--huge-dir=/mnt/huge", "base-virtaddr": ""
    }
}
CONF
  # 7. The port is given to DPDK.
  ip link set dev "$name" down
  modprobe vfio enable_unsafe_noiommu_mode=1
  modprobe vfio-pci
  $6 || fail "binding $bdf"
  knetctl check || fail "knetctl check"
  step "bound"
  # 8. Redis under the preload.
  before=$(awk '/^Tcp: [0-9]/ { print $6 + $7 }' /proc/net/snmp)
  taskset -c 0 env LD_PRELOAD=/usr/lib64/libknet_frame.so redis-server /etc/redis.conf --port 6380 --bind "$ip" \
    >/tmp/redis.log 2>&1 &
  redis=$!
  for _ in $(seq 300); do
    grep -q 'Ready to accept connections' /tmp/redis.log && break
    kill -0 $redis 2>/dev/null || break
    sleep 0.2
  done
  grep '^knet:' /tmp/redis.log
  grep -q 'Ready to accept connections' /tmp/redis.log || { cat /tmp/redis.log; fail "Redis on $bdf"; }
  step "ready"
  echo "VM ready $ip"
  # The client is outside. It ends Redis when it has counted what it wanted to.
  while kill -0 $redis 2>/dev/null; do
    knetctl stats 2>/dev/null | grep -E '^(stack.flows_accepted|port.[rt]x_frames) ' | sed 's/^/VM stat /'
    # The CPU that the host's lcore is bound to. Without a process for each task: the machine is emulated.
    for task in /proc/[0-9]*/task/*; do
      [ -z "$cpu" ] || break
      { read -r comm <"$task/comm"; } 2>/dev/null || continue
      [[ $comm != knet-lcore* ]] || cpu=$(awk '/^Cpus_allowed_list/ { print $2 }' "$task/status")
    done
    [ -z "$cpu" ] || echo "VM stat cpu $cpu"
    sleep 2
  done
  step "served"
  # 9. The port goes back to the kernel, after the host has let go of it.
  for try in $(seq 60); do
    pgrep knetd >/dev/null || break
    [ $((try % 10)) != 0 ] || knetctl stats 2>/dev/null | grep '^now.' | sed 's/^/VM waits /'
    sleep 1
  done
  after=$(awk '/^Tcp: [0-9]/ { print $6 + $7 }' /proc/net/snmp)
  echo "VM kernel $((after - before))"
  $7 || fail "giving $bdf back"
  [ "$(basename "$(readlink "/sys/bus/pci/devices/$bdf/driver")")" = "$kernel" ] || fail "$bdf is not $kernel's"
  step "given back"
  echo "VM returned $bdf"
}

printf 'save ""\nprotected-mode no\n' >/etc/redis.conf
. /ports.sh
