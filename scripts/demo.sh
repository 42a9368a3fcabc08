#!/usr/bin/env bash
# Redis on the kernel, then the same Redis under the shim on a DPDK port: one table.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
device=af_packet
json=
requests=100000

modes=()

usage() {
  cat <<'TEXT'
usage: scripts/demo.sh [--device af_packet|af_xdp] [--mode dedicated|inline|both]... [--requests N] [--json FILE]

Installs what is missing, builds the release, makes two namespaces joined by a veth, runs redis-server on
the kernel and then under libknet_frame.so, drives each with redis-benchmark (SET, GET; 50 and 1000 clients)
and prints the ratio and the share of connections that the stack served; below 100 % it fails.
Needs root. Cleans up, also after Ctrl-C.

--mode, all three if not given, says how the stack is driven:
  dedicated  by a host process on a core that it polls; the client is the kernel's
  inline     by the server's own threads; the client is the kernel's
  both       inline at both ends, joined by vhost, no kernel between
TEXT
}
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:?}; shift 2 ;;
    --mode)
      case ${2:-} in dedicated|inline|both) modes+=("$2") ;; *) usage >&2; exit 64 ;; esac
      shift 2 ;;
    --requests) requests=${2:?}; shift 2 ;;
    --json) json=${2:?}; shift 2 ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 64 ;;
  esac
done
[ ${#modes[@]} -gt 0 ] || modes=(dedicated inline both)
say() { echo "demo: $*" >&2; }
[ "$(id -u)" = 0 ] || { say "needs root for its network namespaces (scripts/lab.sh up --device unix does not)"; exit 1; }

. "$here/deps.sh" demo || exit 1
say "building the release"
(cd "$root" && cargo build --release --quiet)

remove_demo() { # FOLDER of a demo that was killed
  [ ! -f "$1/lab" ] || "$here/lab.sh" down --name "$(cat "$1/lab")" >/dev/null 2>&1 || true
  rm -rf "$1"
}
. "$here/folder.sh"
knet_folder demo remove_demo
work=$knet_work
echo "demo-$$" >"$work/lab"
server=
up=
cleanup() {
  trap - EXIT INT TERM
  [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || true
  [ -z "$up" ] || "$here/lab.sh" down --name "$up" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'cleanup; exit 130' INT TERM

client() { "$here/lab.sh" client --name "$up" "$@"; }
cli() { client timeout "${patience:-30}" redis-cli -h 10.77.0.1 -p 6379 "$@"; }

lab_up() { # DEVICE PROGRESS
  up=demo-$$
  "$here/lab.sh" up --name "$up" --device "$1" --progress "$2" >&2
}
lab_down() {
  "$here/lab.sh" down --name "$up" >/dev/null
  up=
}
start() { # [--kernel]
  "$here/lab.sh" server --name "$up" "$@" redis-server --port 6379 --bind 10.77.0.1 --protected-mode no \
    --save '' --appendonly no --daemonize no --dir "$work" >"$work/redis.log" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    [ "$(patience=5 cli ping 2>/dev/null)" = PONG ] && return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  say "redis-server does not answer:"; tail -n 20 "$work/redis.log" >&2
  return 1
}
stop() {
  cli shutdown nosave >/dev/null 2>&1 || true
  for _ in $(seq 50); do kill -0 "$server" 2>/dev/null || break; sleep 0.1; done
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}
passive_opens() { # of the kernel's own TCP in the server's namespace
  ip netns exec "knet-$up-s" awk '/^Tcp:/ { n++; if (n == 2) print $6 }' /proc/net/snmp
}
stack_accepts() { # of the server's host
  "$here/lab.sh" status --name "$up" |
    awk '/^server host:/ { here = 1 } /^client host:/ { here = 0 } here && $1 == "flows_accepted" { n = $2 } END { print n + 0 }'
}
received() {
  cli info stats | tr -d '\r' | awk -F: '$1 == "total_connections_received" { print $2 }' ||
    { say "redis-server has not answered within 30 s"; return 1; }
}

bench() { # LABEL
  for clients in 50 1000; do
    say "$1: $clients clients"
    client redis-benchmark -h 10.77.0.1 -p 6379 -t set,get -c "$clients" -n "$requests" -r 100000 --csv 2>/dev/null |
      tr -d '"' | awk -F, -v c="$clients" '$1 == "SET" || $1 == "GET" { print $1, c, $2 }' >>"$work/$1"
  done
  [ "$(wc -l <"$work/$1")" = 4 ] || { say "$1: not every benchmark gave a result"; exit 1; }
}

say "redis-server on the kernel"
lab_up "$device" dedicated
start --kernel
[ "$(cli set demo kernel)" = OK ]
bench kernel
stop
lab_down

status=0
for mode in "${modes[@]}"; do
  case $mode in
    dedicated) lab_up "$device" dedicated ;;
    inline) lab_up "$device" inline ;;
    both) lab_up vhost inline ;;
  esac
  say "redis-server under the shim, $mode"
  start
  [ "$(cli set demo stack)" = OK ] && [ "$(cli get demo)" = stack ] || { say "SET and GET do not agree"; exit 1; }
  kernel_before=$(passive_opens)
  redis_before=$(received)
  stack_before=$(stack_accepts)
  bench "$mode"
  redis_after=$(received)
  stack_after=$(stack_accepts)
  kernel_after=$(passive_opens)
  stop
  lab_down

  # The second count of `received` made one connection more than the first one knew.
  made=$((redis_after - redis_before))
  served=$((stack_after - stack_before))
  share=$(awk -v s="$served" -v m="$made" 'BEGIN { printf "%.4f", (m > 0) ? ((s > m) ? 1 : s / m) : 0 }')
  if [ "$share" != 1.0000 ] || [ "$kernel_before" != "$kernel_after" ]; then
    say "$mode: not accelerated: the stack accepted $served of $made connections, the kernel $((kernel_after - kernel_before))"
    status=1
  fi
  awk -v mode="$mode" -v share="$share" '
    FNR == NR { kernel[$1, $2] = $3; next }
    { print mode, $1, $2, kernel[$1, $2], $3, (kernel[$1, $2] > 0) ? $3 / kernel[$1, $2] : 0, share }' "$work/kernel" "$work/$mode" >>"$work/rows"
done

awk -v json="$json" '
  BEGIN { printf "%-10s %-5s %8s %14s %14s %7s %16s\n", "mode", "test", "clients", "kernel req/s", "knet req/s", "ratio", "served by stack" }
  {
    printf "%-10s %-5s %8d %14.0f %14.0f %7.2f %15.0f%%\n", $1, $2, $3, $4, $5, $6, $7 * 100
    rows = rows (rows == "" ? "" : ", ") sprintf("{\"mode\": \"%s\", \"test\": \"%s\", \"clients\": %d, \"kernel_rps\": %.2f, \"knet_rps\": %.2f, \"ratio\": %.4f, \"served_by_stack\": %s}", $1, $2, $3, $4, $5, $6, $7)
  }
  END { if (json != "") printf "{\"rows\": [%s]}\n", rows > json }' "$work/rows"
exit $status
