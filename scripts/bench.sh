#!/usr/bin/env bash
# Benchmarks: every figure against the kernel in the same run, interleaved, medians and spread.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
case " $* " in
*" --help "*|*" -h "*) ;;
*)
  . "$here/deps.sh" demo || exit 1
  (cd "$root" && cargo build --release --quiet)
  ;;
esac
exec python3 "$root/benches/bench" "$@"
