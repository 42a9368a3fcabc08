#!/usr/bin/env bash
# Runs every test, tier by tier, and ends with one line: N passed, N failed, N skipped.
#
# T0  no privilege, no DPDK: formatting, lints, unit and architecture tests, model checks, two hosts over a unix socket
# T1  DPDK with virtual devices, no hugepages (root)
# T2  namespaces, veth and real programs (root)
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root" || exit 1

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--tier T0|T1|T2]... [--long] [--no-install]

Installs what is missing, runs all tests (or the named tiers), prints the time per tier and a closing line.
--long runs the long versions too. A check that cannot run here says why and counts as skipped.
TEXT
}
tiers=()
long=0
install=1
while [ $# -gt 0 ]; do
  case $1 in
    --tier) tiers+=("${2:?}"); shift 2 ;;
    --long) long=1; shift ;;
    --no-install) install=0; shift ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 64 ;;
  esac
done
[ ${#tiers[@]} -gt 0 ] || tiers=(T0 T1 T2)
export KNET_TEST_LONG=$long CLIPPY_CONF_DIR="$root/.ci"

passed=0 failed=0 skipped=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pass() { passed=$((passed + 1)); echo "PASS $1"; }
fail() { failed=$((failed + 1)); echo "FAIL $1"; }
skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }

check() { # NAME CMD...: one check, its output shown when it fails
  local name=$1
  shift
  if "$@" >"$work/out" 2>&1; then pass "$name"; else fail "$name"; tail -n 60 "$work/out"; fi
}

# Adds up cargo's closing lines and our own SKIP lines.
cargo_tests() { # NAME CMD...
  local name=$1 status=0 ok bad ignored skips
  shift
  "$@" >"$work/out" 2>&1 || status=$?
  read -r ok bad ignored < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }' "$work/out")
  skips=$(grep -ciE '^skip(ped:)? ' "$work/out")
  passed=$((passed + ok - skips)) failed=$((failed + bad)) skipped=$((skipped + ignored + skips))
  grep -iE '^skip(ped:)? ' "$work/out"
  echo "$name: $((ok - skips)) passed, $bad failed, $((ignored + skips)) skipped"
  if [ "$status" != 0 ]; then
    tail -n 80 "$work/out"
    [ "$bad" != 0 ] || fail "$name (exit $status)"
  elif [ "$ok" = 0 ]; then
    fail "$name ran no test"
  fi
}

# A script that prints PASS, FAIL and SKIP lines of its own.
script_tests() { # NAME CMD...
  local name=$1 status=0 ok bad skips
  shift
  "$@" 2>&1 | tee "$work/out"
  status=${PIPESTATUS[0]}
  ok=$(grep -c '^PASS ' "$work/out") bad=$(grep -c '^FAIL ' "$work/out") skips=$(grep -c '^SKIP ' "$work/out")
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
  [ "$status" = 0 ] || [ "$bad" != 0 ] || fail "$name (exit $status)"
  [ $((ok + bad + skips)) != 0 ] || fail "$name ran no test"
}

t0() {
  check "format" cargo fmt --all --check
  check "lints" cargo clippy --workspace --all-targets --quiet -- -D warnings
  check "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
  check "scripts parse" bash -c 'for file in scripts/*.sh .ci/run; do bash -n "$file" || exit 1; done'
  cargo_tests "unit and architecture tests" cargo test --no-fail-fast --quiet --lib --bins --tests -- --show-output
  check "debug build" cargo build --workspace --quiet
  for file in bad_input preload conformance; do
    [ -x "tests/apps/$file.py" ] && script_tests "$file" "tests/apps/$file.py"
  done
  if [ -f tests/loom.rs ] || grep -rqs 'loom_' src/channel src/readiness*; then
    cargo_tests "model checks (loom)" env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --release --quiet --lib loom_
  fi
}

t1() {
  if [ "$(id -u)" != 0 ]; then skip "T1" "needs root for network namespaces"; return; fi
  check "release build" cargo build --release --workspace --quiet
  for file in tests/tier1/*; do [ -x "$file" ] && script_tests "$(basename "$file")" "$file"; done
}

t2() {
  if [ "$(id -u)" != 0 ]; then skip "T2" "needs root for network namespaces"; return; fi
  check "release build" cargo build --release --workspace --quiet
  for file in redis web; do script_tests "$file" "tests/apps/$file.py"; done
}

declare -A budget=([T0]=900 [T1]=180 [T2]=900)
[ "$install" = 0 ] || "$here/deps.sh" test || { echo "the packages that the tests need could not be installed" >&2; failed=$((failed + 1)); }
for tier in "${tiers[@]}"; do
  begin=$SECONDS
  case $tier in T0) t0 ;; T1) t1 ;; T2) t2 ;; *) usage >&2; exit 64 ;; esac
  took=$((SECONDS - begin))
  echo "tier $tier: $took s of ${budget[$tier]} s"
  if [ "$long" = 0 ] && [ "$took" -gt "${budget[$tier]}" ]; then fail "tier $tier is over its budget"; fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
