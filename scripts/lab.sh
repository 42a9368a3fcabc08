#!/usr/bin/env bash
# A network laboratory on one machine: two namespaces joined by a veth (or by vhost), a server that runs
# under the shim at 10.77.0.1 and a client at 10.77.0.2.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")

usage() {
  cat <<'TEXT'
usage: scripts/lab.sh up [--device af_packet|af_xdp|vhost|unix] [--name NAME] [--mtu BYTES] [--idle spin|adaptive]
                         [--progress dedicated|inline] [--cpus LIST]
       scripts/lab.sh server [--name NAME] [--kernel] CMD...   run CMD at 10.77.0.1 (default: under the shim)
       scripts/lab.sh client [--name NAME] [--shim] CMD...     run CMD at 10.77.0.2 (default: on the kernel; vhost: shim)
       scripts/lab.sh status [--name NAME]                     who is accelerated, and the host's counters
       scripts/lab.sh down [--name NAME]
       scripts/lab.sh list

  af_packet, af_xdp  a DPDK port on a veth, with a kernel peer (root)
  vhost              both ends under the shim, no kernel between (root, for the namespaces)
  unix               both ends under the shim, frames over a unix socket (no privilege)
--cpus names the CPUs of the server's lcores (dpdk.core_list_global).
--progress says who drives the stack at each end: a core of the host, or the program's own threads.
NAME is "lab" if not given. Several labs may be up at once. KNET_BUILD=debug takes the debug build.
TEXT
}

die() { echo "lab: $*" >&2; exit 1; }

name=lab
device=af_packet
mtu=1500
idle=adaptive
progress=dedicated
cpus=
kernel=0
shim=0
verb=${1:-}
[ -n "$verb" ] || { usage; exit 64; }
shift
while [ $# -gt 0 ]; do
  case $1 in
    --name) name=${2:?--name needs a value}; shift 2 ;;
    --device) device=${2:?--device needs a value}; shift 2 ;;
    --mtu) mtu=${2:?--mtu needs a value}; shift 2 ;;
    --idle) idle=${2:?--idle needs a value}; shift 2 ;;
    --progress) progress=${2:?--progress needs a value}; shift 2 ;;
    --cpus) cpus=${2:?--cpus needs a value}; shift 2 ;;
    --kernel) kernel=1; shift ;;
    --shim) shim=1; shift ;;
    --help|-h) usage; exit 0 ;;
    --) shift; break ;;
    -*) usage >&2; exit 64 ;;
    *) break ;;
  esac
done
[[ $name =~ ^[a-z0-9][a-z0-9-]{0,19}$ ]] || die "the name '$name' is not 1 to 20 of a-z, 0-9 and -"

base=${KNET_LAB_DIR:-${XDG_RUNTIME_DIR:-/tmp}/knet-lab-$(id -u)}
state=$base/$name
server_ns=knet-$name-s
client_ns=knet-$name-c

find_built() {
  local file
  for file in "$root/target/${KNET_BUILD:-release}/$1" "$root/target/debug/$1" "/usr/bin/$1" "/usr/lib64/$1" "/usr/lib/x86_64-linux-gnu/$1"; do
    [ -e "$file" ] && { echo "$file"; return; }
  done
  die "$1 is not built: run cargo build --release"
}

ours() { [ -f "$state/device" ] || die "no lab '$name' is up: scripts/lab.sh up --name $name"; device=$(cat "$state/device"); }

config() { # FILE ADDRESS PORT-LINES [MORE-SECTIONS]
  local dpdk=
  if [ -n "$cpus" ] && [ "$1" = "$state/server.conf" ]; then dpdk="\"dpdk\": { \"core_list_global\": \"$cpus\" },"; fi
  cat >"$1" <<JSON
{
  "common": { "idle": "$idle", "progress": "$progress" },
  ${4:-}
  $dpdk
  "interface": {
    $3,
    "ip": "$2",
    "netmask": "255.255.255.0",
    "mtu": $mtu
  },
  "proto_stack": { "max_tcpcb": 24000, "msl_time": 1 }
}
JSON
}

ends() { # NAMESPACE: end every process in it, by pid
  local pids
  pids=$(ip netns pids "$1" 2>/dev/null || true)
  [ -z "$pids" ] || kill -TERM $pids 2>/dev/null || true
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    pids=$(ip netns pids "$1" 2>/dev/null || true)
    [ -n "$pids" ] || return 0
    sleep 0.1
  done
  kill -KILL $pids 2>/dev/null || true
}

members() { # who runs under the shim in a lab without namespaces, hosts included: only they have its run folders
  grep -lzs "^KNET_RUN_DIR=$state/run-[sc]$" /proc/[0-9]*/environ | cut -d/ -f3 || true
}

down() {
  local pids
  if [ "$(cat "$state/device" 2>/dev/null)" = unix ]; then
    for signal in TERM KILL; do
      pids=$(members)
      [ -z "$pids" ] || kill -"$signal" $pids 2>/dev/null || true
      for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(members)" ] || break
        sleep 0.1
      done
    done
  else
    for ns in "$server_ns" "$client_ns"; do
      if [ -e "/run/netns/$ns" ]; then
        ends "$ns"
        ip netns del "$ns" 2>/dev/null || true
      fi
    done
  fi
  rm -rf "${state:?}"
}

case $verb in
up)
  case $device in af_packet|af_xdp|vhost|unix) ;; *) die "no device '$device': af_packet, af_xdp, vhost or unix" ;; esac
  [ ! -e "$state" ] || die "lab '$name' is up already: scripts/lab.sh down --name $name"
  mkdir -p "$base"
  # In /tmp anybody could have made it first.
  [ -O "$base" ] && [ ! -L "$base" ] || die "$base is not this user's own folder"
  chmod 700 "$base"
  mkdir "$state" "$state/run-s" "$state/run-c"
  echo "$device" >"$state/device"
  if [ "$device" != unix ]; then
    [ "$(id -u)" = 0 ] || { rm -rf "$state"; die "device $device needs root for its namespaces; --device unix does not"; }
    trap 'down; exit 1' INT TERM ERR
    ip netns add "$server_ns"
    ip netns add "$client_ns"
    for ns in "$server_ns" "$client_ns"; do
      ip -n "$ns" link set lo up
      ip netns exec "$ns" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 2>/dev/null || true
    done
  fi
  case $device in
  af_packet|af_xdp)
    ip link add veth0 netns "$server_ns" mtu "$mtu" type veth peer name veth0 netns "$client_ns" mtu "$mtu"
    # A kernel peer on a veth hands over partial checksums and super-frames; with tx off it does not.
    ip netns exec "$client_ns" ethtool -K veth0 tx off >/dev/null
    ip -n "$server_ns" link set veth0 up
    ip -n "$client_ns" addr add 10.77.0.2/24 dev veth0
    ip -n "$client_ns" link set veth0 up
    if [ "$device" = af_packet ]; then
      config "$state/server.conf" 10.77.0.1 '"netdev": "veth0"'
    else
      config "$state/server.conf" 10.77.0.1 '"vdevs": ["net_af_xdp0,iface=veth0,busy_budget=0"]'
    fi
    ;;
  vhost)
    # What a NIC would do: checksums, and large segments both ways.
    offloads='"hw_offload": { "tcp_checksum": 1, "tso": 1, "lro": 1 },'
    config "$state/server.conf" 10.77.0.1 "\"vdevs\": [\"net_vhost0,iface=$state/vhost.sock,tso=1\"]" "$offloads"
    config "$state/client.conf" 10.77.0.2 "\"vdevs\": [\"net_virtio_user0,path=$state/vhost.sock\"]" "$offloads"
    ;;
  unix)
    config "$state/server.conf" 10.77.0.1 "\"vdevs\": [\"knet_unix,path=$state/wire.sock\"]"
    config "$state/client.conf" 10.77.0.2 "\"vdevs\": [\"knet_unix,path=$state/wire.sock\"]"
    ;;
  esac
  trap - INT TERM ERR
  echo "lab '$name' is up ($device): server 10.77.0.1, client 10.77.0.2"
  for file in "$state"/*.conf; do echo "config: $file"; done
  ;;
server)
  ours
  [ $# -gt 0 ] || die "server needs a command"
  if [ "$kernel" = 1 ]; then
    case $device in vhost|unix) die "a $device lab has no kernel path" ;; esac
    ip -n "$server_ns" addr replace 10.77.0.1/24 dev veth0
    # The address leaves with the server, however it ends: under the shim nobody could have it otherwise.
    trap 'ip -n "$server_ns" addr del 10.77.0.1/24 dev veth0 2>/dev/null || true' EXIT
    ip netns exec "$server_ns" "$@" <&0 &
    server=$!
    trap 'kill -TERM "$server" 2>/dev/null || true' INT TERM HUP
    status=0
    while true; do
      status=0
      wait "$server" || status=$?
      kill -0 "$server" 2>/dev/null || break
    done
    exit $status
  fi
  if [ "$device" != unix ] && ip -n "$server_ns" addr show dev veth0 2>/dev/null | grep -q 10.77.0.1; then
    die "10.77.0.1 is on the kernel's veth0: a server --kernel still runs in this lab"
  fi
  run=(env "KNET_CONF=$state/server.conf" "KNET_RUN_DIR=$state/run-s" "KNET_LOG=$state/server-host.log" "$(find_built knetctl)" run -- "$@")
  [ "$device" = unix ] && exec "${run[@]}"
  exec ip netns exec "$server_ns" "${run[@]}"
  ;;
client)
  ours
  [ $# -gt 0 ] || die "client needs a command"
  case $device in vhost|unix) shim=1 ;; esac
  if [ "$shim" = 1 ]; then
    [ -f "$state/client.conf" ] || die "the client of a $device lab is on the kernel; its config would need a port of its own"
    run=(env "KNET_CONF=$state/client.conf" "KNET_RUN_DIR=$state/run-c" "KNET_LOG=$state/client-host.log" "$(find_built knetctl)" run -- "$@")
  else
    run=("$@")
  fi
  [ "$device" = unix ] && exec "${run[@]}"
  exec ip netns exec "$client_ns" "${run[@]}"
  ;;
status)
  ours
  echo "lab '$name': $device"
  for end in s c; do
    for socket in "$state/run-$end"/host-*.sock; do
      [ -S "$socket" ] || continue
      [ "$end" = s ] && echo "server host: $socket" || echo "client host: $socket"
      "$(find_built knetctl)" status --socket "$socket" || true
      "$(find_built knetctl)" stats --socket "$socket" | sed -E 's/^(lcore|stack|gpu|now)\.//' || true
    done
  done
  ;;
down)
  [ -e "$state" ] || { echo "lab '$name' is not up"; exit 0; }
  down
  echo "lab '$name' is down"
  ;;
list)
  for file in "$base"/*/device; do
    [ -f "$file" ] && echo "$(basename "$(dirname "$file")") $(cat "$file")"
  done
  exit 0
  ;;
--help|-h|help) usage ;;
*) usage >&2; exit 64 ;;
esac
