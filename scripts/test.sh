#!/usr/bin/env bash
# Runs every test, tier by tier, and ends with one line: N passed, N failed, N skipped.
#
# T0  no privilege, no DPDK (debug build): formatting, lints, unit and architecture tests, model checks, two hosts
#     over a unix socket
# T1  DPDK with virtual devices, no hugepages (debug build, root)
# T2  namespaces, veth and real programs (release build, root)
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root" || exit 1

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--tier T0|T1|T2]... [--long] [--no-install]

Installs what is missing, runs all tests (or the named tiers), prints the time per tier and a closing line.
--long runs the long versions too. A check that cannot run here says why and counts as skipped. What fails is run once
more by itself, and is named unsteady when it passes then.
TEXT
}
tiers=()
long=0
install=1
while [ $# -gt 0 ]; do
  case $1 in
    --tier) case ${2:-} in T0|T1|T2) tiers+=("$2") ;; *) usage >&2; exit 64 ;; esac; shift 2 ;;
    --long) long=1; shift ;;
    --no-install) install=0; shift ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 64 ;;
  esac
done
[ ${#tiers[@]} -gt 0 ] || tiers=(T0 T1 T2)
# The tests are judged on this tree alone, whatever the caller's shell was set up for.
for name in $(compgen -e | grep -E '^KNET_|^LD_PRELOAD$'); do unset "$name"; done
export KNET_TEST_LONG=$long CLIPPY_CONF_DIR="$root/.ci" CARGO_TERM_COLOR=never
unset CARGO_TARGET_DIR RUSTFLAGS

passed=0 failed=0 skipped=0
unsteady=()
group=
. "$here/folder.sh"
knet_folder tests
work=$knet_work
# Tests that become another user come through.
chmod 711 "$work"
leave() {
  if [ -n "$group" ]; then
    kill -TERM -- "-$group" 2>/dev/null
    for _ in $(seq 100); do kill -0 -- "-$group" 2>/dev/null || break; sleep 0.2; done
    kill -KILL -- "-$group" 2>/dev/null
  fi
  rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

pass() { passed=$((passed + 1)); echo "PASS $1"; }
fail() { failed=$((failed + 1)); echo "FAIL $1"; }
skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }

# A command with an end: in a process group of its own, without stdin, stdout in $work/out and stderr in $work/err.
bounded() { # SECONDS CMD...
  local limit=$1 status=0
  shift
  [ "$long" = 0 ] || limit=$((limit * 4))
  set -m
  timeout --foreground --kill-after=60 "$limit" "$@" </dev/null >"$work/out" 2>"$work/err" &
  group=$!
  set +m
  wait "$group" || status=$?
  # Whoever the command left behind in its group.
  kill -KILL -- "-$group" 2>/dev/null
  group=
  case $status in 124|137) echo "stopped after $limit s: $*" >>"$work/err" ;; esac
  return "$status"
}

check() { # NAME SECONDS CMD...: one check, its output shown when it fails
  local name=$1
  shift
  if bounded "$@"; then pass "$name"; else fail "$name"; tail -n 60 "$work/out" "$work/err"; fi
}

# What failed is run once more by itself: on a machine whose CPUs others take away, a case breaks now and then. Who passes
# then counts as passed, and is named unsteady here and at the end. Many at once are no accident, and are not run again.
again=0
run_again() { # SUITE NAMES CMD...: sets `again` to the number that passes now; a name is the last word of the command
  local suite=$1 name
  local -a names
  read -r -a names <<<"$2"
  shift 2
  again=0
  [ ${#names[@]} -le 3 ] || return 0
  for name in "${names[@]}"; do
    if bounded "$@" "$name" && grep -qE '^(PASS |test result: ok\. 1 passed)' "$work/out" && ! grep -q '^FAIL ' "$work/out"; then
      again=$((again + 1))
      unsteady+=("$suite: $name")
      echo "UNSTEADY $suite: $name failed, and passed by itself"
    fi
  done
}

# Adds up cargo's closing lines and our own lines about what could not run.
cargo_tests() { # NAME SECONDS CMD...
  local name=$1 status=0 ok bad ignored skips names
  shift
  # What a test that fails leaves behind goes with the folder.
  bounded "$1" env TMPDIR="$work" "${@:2}" || status=$?
  read -r ok bad ignored < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }' "$work/out")
  grep -hE '^(SKIP|skipped:) ' "$work/out" "$work/err" | sort -u >"$work/skips"
  skips=$(wc -l <"$work/skips")
  # The names of what failed stand below the last line `failures:` of each binary.
  awk '/^failures:$/ { list = "" ; on = 1; next } /^test result:/ { if (on) printf "%s", list; on = 0; next } on { list = list $0 "\n" }' \
    "$work/out" >"$work/failures"
  passed=$((passed + ok - skips)) failed=$((failed + bad)) skipped=$((skipped + ignored + skips))
  cat "$work/skips"
  echo "$name: $((ok - skips)) passed, $bad failed, $((ignored + skips)) skipped"
  if [ "$status" != 0 ]; then
    tail -n 80 "$work/out" "$work/err"
    [ "$bad" != 0 ] || fail "$name (exit $status)"
    names=$(sed -nE 's/^    ([a-z0-9_]+(::[a-z0-9_]+)*)$/\1/p' "$work/failures")
    # Without options for the test binaries a name would be one more filter, which finds more than it.
    case " $* " in *" -- "*) run_again "$name" "$(sort -u <<<"$names" | tr '\n' ' ')" "$@" --exact ;; *) again=0 ;; esac
    passed=$((passed + again)) failed=$((failed - again))
  elif [ "$ok" = 0 ]; then
    fail "$name ran no test"
  fi
}

# A script that prints PASS, FAIL and SKIP lines of its own. Shown: what did not pass, and its words about it.
script_tests() { # NAME SECONDS CMD...
  local name=$1 status=0 ok bad skips names word
  local -a command=()
  shift
  bounded "$@" || status=$?
  ok=$(grep -c '^PASS ' "$work/out") bad=$(grep -c '^FAIL ' "$work/out") skips=$(grep -c '^SKIP ' "$work/out")
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
  grep -E '^(FAIL|SKIP) ' "$work/out"
  echo "$name: $ok passed, $bad failed, $skips skipped"
  if [ "$status" != 0 ] || [ "$bad" != 0 ]; then tail -n 60 "$work/err"; fi
  case $status in
  0) [ $((ok + bad + skips)) != 0 ] || fail "$name ran no test" ;;
  124|137) fail "$name was stopped before its end" ;;
  *) [ "$bad" != 0 ] || fail "$name (exit $status)" ;;
  esac
  if [ "$bad" != 0 ]; then
    names=$(sed -nE 's/^FAIL [a-z_]+::(([A-Za-z0-9_.-]|::)+).*/\1/p' "$work/out" | sort -u | tr '\n' ' ')
    # The script without the names of cases that it was given.
    for word in "$@"; do command+=("$word"); case $word in *.py) break ;; esac; done
    run_again "$name" "$names" "${command[@]}"
    passed=$((passed + again)) failed=$((failed - again))
  fi
}

# The integration tests as options for cargo; dpdk_ports is a tier of its own.
integration() {
  local file name
  for file in tests/*.rs tests/*/main.rs; do
    name=${file#tests/}
    name=${name%/main.rs}
    name=${name%.rs}
    [ "$name" = dpdk_ports ] || echo --test "$name"
  done
}

t0() {
  export KNET_BUILD=debug
  check "format" 60 cargo fmt --all --check
  check "lints" 900 cargo clippy --workspace --all-targets --quiet -- -D warnings
  check "docs" 600 env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
  check "scripts parse" 60 bash -c 'for file in scripts/*.sh .ci/run; do bash -n "$file" || exit 1; done'
  check "debug build" 900 cargo build --workspace --quiet
  # Unit tests run first and note the counters that they raise; tests/counters.rs looks for what is missing.
  export KNET_TEST_COUNTERS="$work/counters"
  # The names of the tests are words without blanks.
  # shellcheck disable=SC2046
  cargo_tests "unit and architecture tests" 900 \
    cargo test --no-fail-fast --quiet --lib --bins $(integration) -- --show-output
  script_tests "documents" 120 tests/docs.py
  script_tests "PTX of the GPU kernels" 180 scripts/ptx.py --check
  for file in bad_input preload conformance scripts fuzz mutants admin; do script_tests "$file" 600 "tests/apps/$file.py"; done
  script_tests "admin, the host inside" 300 env KNET_TEST_PROGRESS=inline tests/apps/admin.py
  cargo_tests "model checks (loom)" 600 \
    env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p knet --release --quiet --lib loom_
}

t1() {
  if [ "$(id -u)" != 0 ]; then skip "T1" "needs root for network namespaces"; return; fi
  check "debug build" 900 cargo build --workspace --quiet
  cargo_tests "DPDK ports" 600 cargo test --no-fail-fast --quiet --test dpdk_ports -- --show-output
}

t2() {
  if [ "$(id -u)" != 0 ]; then skip "T2" "needs root for network namespaces"; return; fi
  export KNET_BUILD=release
  check "release build" 900 cargo build --release --workspace --quiet
  for file in redis clients web bulk payload unit shell restart short_connections years; do script_tests "$file" 600 "tests/apps/$file.py"; done
  for file in hosts revival link frames limits programs; do script_tests "faults of $file" 300 "tests/apps/faults_$file.py"; done
  script_tests "upgrade" 120 tests/apps/upgrade.py
  local programs
  programs=$(tests/apps/programs.py)
  echo "programs of today: $programs"
  # shellcheck disable=SC2086
  [ "$install" = 0 ] || . "$here/deps.sh" $programs || fail "the packages that $programs need could not be installed"
  for file in $programs; do script_tests "$file" 300 "tests/apps/$file.py"; done
  script_tests "package" 300 tests/apps/package.py
  script_tests "service" 300 tests/apps/service.py
  script_tests "quick start in a virtual machine" 600 tests/apps/vm.py
  [ "$long" = 0 ] || script_tests "100 000 connections in a virtual machine" 700 tests/apps/vm_limits.py
  cargo_tests "1 GiB each way in virtual time, and through chacha20 twice" 600 \
    env KNET_TEST_BULK_MIB=1024 cargo test --release --quiet --lib -- stack::tests::bulk::a_bad_wire \
    gpu::chacha20::tests::a_long_stream --show-output
  script_tests "benchmark" 300 tests/apps/bench.py
  script_tests "inline" 300 tests/apps/inline.py
  script_tests "several lcores" 120 tests/apps/lcores.py
  script_tests "redis, inline" 300 env KNET_TEST_PROGRESS=inline tests/apps/redis.py ping_set_get pipelining \
    publish_to_100_subscribers redis_benchmark_completes bgsave_under_load shutdown_and_restart_on_the_same_port daemonize_yes
  script_tests "clients over vhost" 300 env KNET_TEST_DEVICE=vhost tests/apps/clients.py
}

times=
[ "$install" = 0 ] || . "$here/deps.sh" test || fail "the packages that the tests need could not be installed"
for tier in "${tiers[@]}"; do
  begin=$SECONDS
  echo "tier $tier"
  case $tier in T0) t0 ;; T1) t1 ;; T2) t2 ;; esac
  took=$((SECONDS - begin))
  times="$times${times:+, }$tier $took s"
  echo "tier $tier: $took s"
  # Builds from nothing among them; together they are what a run may take.
  case $tier in T0) budget=1400 ;; T1) budget=150 ;; T2) budget=1450 ;; esac
  [ "$long" = 1 ] || [ "$took" -le "$budget" ] || fail "tier $tier took $took s, and its budget is $budget s"
done
echo "time: $times"
for name in "${unsteady[@]}"; do echo "unsteady: $name"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
