#!/usr/bin/env bash
# The compiler, with the profile of where the packet path spends its time (docs/performance.md, "The profile").
#
# Cargo calls it as `rustc.sh COMPILER ARGUMENTS` (.cargo/config.toml). All but the optimised code of the crates on the
# packet path passes unchanged, and so does everything with a compiler other than the one that made the profile: names
# and format of a profile are a compiler's own. KNET_PROFILE=DIR writes one into DIR instead (scripts/profile.sh).
# Not for sh: some drop variables that are no names of theirs, and cargo sets CARGO_BIN_EXE_gpu-bench.
set -eu

profile=$(dirname "$0")/../benches/profile
crate='' optimised='' test=''
previous=''
for argument; do
	case $previous:$argument in
	--crate-name:*) crate=$argument ;;
	-C:opt-level=3 | *:-Copt-level=3) optimised=yes ;;
	*:--test) test=yes ;;
	esac
	previous=$argument
done

case $crate in
knet | smoltcp | knet_frame | frame | knetd) ;;
*) exec "$@" ;;
esac
if [ -z "$optimised" ] || [ -n "$test" ]; then
	exec "$@"
fi
if [ -n "${KNET_PROFILE-}" ]; then
	exec "$@" "-Cprofile-generate=$KNET_PROFILE"
fi
if [ "$("$1" -vV)" = "$(cat "$profile/compiler")" ]; then
	exec "$@" "-Cprofile-use=$(cd "$profile" && pwd)/knet.profdata" -Cllvm-args=-no-pgo-warn-mismatch
fi
exec "$@"
