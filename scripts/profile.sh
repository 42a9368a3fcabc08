#!/usr/bin/env bash
# Makes benches/profile anew: where the packet path spends its time, for the compiler (docs/performance.md, "The profile").
#
#   scripts/profile.sh [ROUNDS]     root, some ten minutes; 1 round by default
#
# Builds with counters into target/profile, runs the benchmarks with that build, and keeps what was counted.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
case ${1-} in
-h | --help)
	sed -n '2,6s/^# \{0,1\}//p' "$0"
	exit 0
	;;
*[!0-9]* | 0) echo "profile.sh: '$1' is no number of rounds" >&2 && exit 2 ;;
esac
rounds=${1:-1}
cd "$root"
. "$here/deps.sh" demo || exit 1

compiler=$(rustc -vV)
host=$(sed -n 's/^host: //p' <<<"$compiler")
merge=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$merge" ]; then
	rustup component add llvm-tools || {
		echo "profile.sh: no $merge, and rustup could not add llvm-tools" >&2
		exit 1
	}
fi

# A place that every program may write to, whatever user it becomes.
counted=$(mktemp -d)
trap 'rm -rf "$counted" target/profile' EXIT
chmod 1777 "$counted"
# Where a build writes is part of it, and nothing that cargo looks at: a build of before would write where nobody reads.
rm -rf target/profile
KNET_PROFILE=$counted CARGO_TARGET_DIR=target/profile cargo build --release --workspace --quiet

train() {
	# Bounds mean nothing for a build that counts: rows that fail them are no failure here.
	KNET_BUILD=profile/release python3 benches/bench "$@" --rounds "$rounds" --runs 1 --starts 1 --patience 0 >"$counted/bench.log" 2>&1 || {
		[ $? -eq 1 ] && grep -q 'served by the stack: 100%' "$counted/bench.log" || {
			tail -n 20 "$counted/bench.log" >&2
			exit 1
		}
	}
}
echo "profile.sh: both ends inline: requests, round trips, streams, connections" >&2
train redis pingpong stream connrate --progress inline --ends both
echo "profile.sh: the server alone, inline and with lcores" >&2
train redis --progress inline --ends one --requests 20000
train redis --progress dedicated --ends one --requests 20000

"$merge" merge --sparse --output "$counted/knet.profdata" "$counted"/*.profraw
mv "$counted/knet.profdata" benches/profile/knet.profdata
printf '%s\n' "$compiler" >benches/profile/compiler
ls -l benches/profile/knet.profdata
