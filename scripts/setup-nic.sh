#!/usr/bin/env bash
# Gives a network port to DPDK, and back: the command `knetctl nic` under the name that guides look for.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for tool in "$here/../target/${KNET_BUILD:-release}/knetctl" "$here/../../bin/knetctl" /usr/bin/knetctl; do
  [ ! -x "$tool" ] || exec "$tool" nic "$@"
done
echo "setup-nic.sh: knetctl is neither built nor installed" >&2
exit 69
