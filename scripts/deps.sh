#!/usr/bin/env bash
# Installs what is missing to build, to test or to run the demo. Does nothing, quickly, when all is there.
#
#   scripts/deps.sh build|test|demo|PROGRAM...
#   . scripts/deps.sh build          also puts a cargo that it had to look for on the PATH
#
# PROGRAM is one of those that tests/apps/programs.py names.
#
# Debian and Ubuntu by apt-get; systems with dnf as far as the packages exist there. Installing needs root.
# A service that a package brings (redis, nginx, lighttpd) is not started.

# One line a need: verbs | how to see that it is there | apt packages | dnf packages.
# The first package that the system knows is taken; "-" = found by its kind (the Rust tool chain).
knet_needs() {
	cat <<-'NEEDS'
		build test demo | command gcc | gcc | gcc
		build test demo | file /usr/include/stdio.h | libc6-dev | glibc-devel
		build test demo | command pkg-config | pkg-config pkgconf | pkgconf-pkg-config
		build test demo | file /usr/lib/llvm-*/lib/libclang.so /usr/lib*/libclang.so | libclang-dev | clang-devel
		build test demo | module libdpdk | libdpdk-dev | dpdk-devel
		build test demo | command dpdk-devbind.py | dpdk | dpdk-tools dpdk
		build test demo | cargo | - | -
		test | cargo-tool fmt | - | -
		test | cargo-tool clippy | - | -
		test | command dpdk-testpmd | dpdk-dev | dpdk
		test demo | command redis-server | redis-server | redis valkey-compat-redis
		test demo | command redis-benchmark | redis-tools | redis valkey-compat-redis
		test demo | command ip | iproute2 | iproute
		test demo | command ethtool | ethtool | ethtool
		test demo | command ping | iputils-ping | iputils
		test demo | command pgrep | procps | procps-ng
		test demo | command taskset | util-linux | util-linux
		test demo | command python3 | python3 | python3
		test | command nft | nftables | nftables
		test | command g++ | g++ | gcc-c++
		test | command pip3 | python3-pip | python3-pip
		test | command nm | binutils | binutils
		test | command rpmbuild | rpm | rpm-build
		test | command rpmlint | rpmlint | rpmlint
		test | command dpkg-shlibdeps | dpkg-dev | dpkg-dev
		test | command qemu-system-x86_64 | qemu-system-x86 | qemu-system-x86-core
		test | command busybox | busybox-static | busybox
		test | command cpio | cpio | cpio
		test | command modprobe | kmod | kmod
		test | command logrotate | logrotate | logrotate
		test | command rsyslogd | rsyslog | rsyslog
		test | command git | git | git-core git
		test | command patch | patch | patch
		test | command curl | curl | curl
		test | command tcpdump | tcpdump | tcpdump
		test | command tshark | tshark | wireshark-cli
		test | command ksh | ksh ksh93u+m | ksh
		test | command nginx | nginx-light nginx | nginx
		test | command memcached | memcached | memcached
		test | command haproxy | haproxy | haproxy
		test | command lighttpd | lighttpd | lighttpd
		test | command strace | strace | strace
		test | command gdb | gdb | gdb
		test | command valgrind | valgrind | valgrind
		test | file /usr/lib/*-linux-gnu/libseccomp.so.2 /usr/lib*/libseccomp.so.2 | libseccomp2 | libseccomp
		test | file /usr/lib/*-linux-gnu/libjemalloc.so.2 /usr/lib*/libjemalloc.so.2 | libjemalloc2 | jemalloc
		test | file /usr/lib/*-linux-gnu/libtcmalloc_minimal.so.4 /usr/lib*/libtcmalloc_minimal.so.4 | libtcmalloc-minimal4 libtcmalloc-minimal4t64 | gperftools-libs
		nginx curl python haproxy node wget | command openssl | openssl | openssl
		nginx nginx_workers curl web_load wget limits | command nginx | nginx-light nginx | nginx
		nginx curl haproxy | command curl | curl | curl
		memcached | command memcached | memcached | memcached
		memcached | command memcslap | libmemcached-tools | libmemcached
		python | file /usr/lib/python3/dist-packages/requests/__init__.py /usr/lib/python3*/site-packages/requests/__init__.py | python3-requests | python3-requests
		haproxy | command haproxy | haproxy | haproxy
		iperf3 | command iperf3 | iperf3 | iperf3
		postgres | file /usr/lib/postgresql/*/bin/postgres | postgresql | postgresql-server postgresql-contrib
		web_load | command wrk | wrk | wrk
		web_load limits | command ab | apache2-utils | httpd-tools
		node | command node | nodejs | nodejs
		java | command javac | openjdk-17-jdk-headless default-jdk-headless | java-17-openjdk-devel
		gunicorn | command gunicorn | gunicorn | python3-gunicorn
		mosquitto | command mosquitto | mosquitto | mosquitto
		mosquitto | command mosquitto_pub | mosquitto-clients | mosquitto
		relays | command socat | socat | socat
		relays | command nc | netcat-openbsd | netcat
		rsync | command rsync | rsync | rsync
		wget | command wget | wget | wget
		varnish | command varnishd | varnish | varnish
		cpython | file /usr/lib/python3.*/test/test_socket.py /usr/lib64/python3.*/test/test_socket.py | libpython3.13-testsuite libpython3.12-testsuite libpython3.11-testsuite | python3-test
		golang | command go | golang-go | golang
		untouched | command setcap | libcap2-bin | libcap
		untouched | command setpriv | util-linux | util-linux
	NEEDS
}

knet_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

knet_say() { echo "deps.sh: $*" >&2; }

# The manifest's rust-version.
knet_rust_wanted() { sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$knet_root/Cargo.toml" | head -n 1; }

# knet_at_least HAVE WANTED
knet_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# A cargo of at least the wanted version is, or can be put, on the PATH.
knet_find_cargo() {
	local wanted folder version
	wanted=$(knet_rust_wanted)
	for folder in "" "${CARGO_HOME:-$HOME/.cargo}/bin" $(ls -d /usr/lib/rust-*/bin 2>/dev/null | sort -rV); do
		version=$(PATH="$folder${folder:+:}$PATH" cargo --version 2>/dev/null | awk '{print $2}')
		if [ -n "$version" ] && knet_at_least "$version" "$wanted"; then
			[ -z "$folder" ] || export PATH="$folder:$PATH"
			return 0
		fi
	done
	return 1
}

# knet_is_there KIND ARGUMENT...
knet_is_there() {
	local kind=$1 path
	shift
	case $kind in
	command) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
	module) pkg-config --exists "$1" 2>/dev/null ;;
	cargo) knet_find_cargo ;;
	cargo-tool) knet_find_cargo && cargo "$1" --version >/dev/null 2>&1 ;;
	file)
		for path in "$@"; do
			[ -e "$path" ] && return 0
		done
		return 1
		;;
	esac
}

# Writes the missing needs of some verbs, as "apt packages | dnf packages" ("cargo", "cargo-tool" for the tool chain).
knet_missing() {
	local verbs probe apt dnf wanted
	knet_needs | while IFS='|' read -r verbs probe apt dnf; do
		for wanted in "$@" ""; do
			case " $verbs " in *" $wanted "*) break ;; esac
		done
		[ -n "$wanted" ] || continue
		# The probe's words and patterns are to be split and expanded.
		# shellcheck disable=SC2086
		knet_is_there $probe && continue
		case $probe in *cargo*) echo "$probe" | awk '{ print $1 }' ;; *) echo "$apt|$dnf" ;; esac
	done
}

# The version that apt would install, nothing if it knows no such package.
knet_apt_version() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v '(none)'; }

knet_first_known() {
	local package
	for package in "$@"; do
		if [ "$knet_installer" = apt-get ]; then
			[ -n "$(knet_apt_version "$package")" ] && echo "$package" && return 0
		else
			dnf -q list "$package" >/dev/null 2>&1 && echo "$package" && return 0
		fi
	done
	return 1
}

# Packages with a cargo (or with rustfmt and clippy) that is new enough: the usual ones, else those for web browsers,
# else numbered ones.
knet_rust_packages() { # cargo|cargo-tool
	local wanted number cargo tail
	wanted=$(knet_rust_wanted)
	if [ "$1" = cargo-tool ] && command -v rustup >/dev/null; then
		knet_run "$log" rustup component add rustfmt clippy
		return
	fi
	for cargo in cargo cargo-web $(apt-cache search --names-only '^cargo-[0-9.]+$' 2>/dev/null | awk '{print $1}' | sort -rV); do
		if [ "$knet_installer" = dnf ]; then
			[ "$1" = cargo ] && echo cargo rust || echo rustfmt clippy
			return 0
		fi
		number=$(knet_apt_version "$cargo")
		# 1.85.0+dfsg-1, or 0.66.0 for 1.65 in the old counting, which is too old in any case
		if [ -n "$number" ] && knet_at_least "${number%%[+~-]*}" "$wanted"; then
			tail=${cargo#cargo}
			[ "$1" = cargo ] && echo "$cargo rustc$tail" || echo "rustfmt$tail rust$tail-clippy"
			return 0
		fi
	done
	knet_say "no package has a cargo of version $wanted or newer; install one from rustup.rs"
	return 1
}

# While packages are installed no service is started. An existing policy comes back afterwards, also the
# one that a killed run left aside.
knet_policy=/usr/sbin/policy-rc.d
knet_policy_on() {
	knet_policy_off
	[ ! -e $knet_policy ] || mv $knet_policy $knet_policy.knet-saved
	printf '#!/bin/sh\n# knet deps.sh: start no service while packages are installed\nexit 101\n' >$knet_policy
	chmod 755 $knet_policy
}
knet_policy_off() {
	if [ -e $knet_policy.knet-saved ]; then
		mv $knet_policy.knet-saved $knet_policy
	elif grep -q 'knet deps.sh' $knet_policy 2>/dev/null; then
		rm -f $knet_policy
	fi
}

# knet_run LOG COMMAND...: quiet; the end of its output when it fails.
knet_run() {
	local log=$1
	shift
	"$@" >"$log" 2>&1 </dev/null && return 0
	knet_say "failed: $*"
	tail -n 5 "$log" | sed 's/^/deps.sh:   /' >&2
	return 1
}

# What an installation would remove of this machine, nothing if it removes nothing.
knet_would_remove() { LC_ALL=C apt-get install -s --no-install-recommends "$@" 2>/dev/null | sed -n 's/^Remv \([^ ]*\).*/\1/p' | tr '\n' ' '; }

# Takes out of `packages` those that apt would only install by removing others (they come from elsewhere, backports say):
# nothing is removed from a machine for our sake. What needs them is skipped, visibly.
knet_keep_what_is_there() {
	local package removed kept=()
	[ -n "$(knet_would_remove "${packages[@]}")" ] || return 0
	for package in "${packages[@]}"; do
		removed=$(knet_would_remove "$package")
		if [ -z "$removed" ]; then
			kept+=("$package")
		else
			knet_say "left out: $package, which would remove ${removed% } (take it from where that came)"
			left_out=1
		fi
	done
	packages=("${kept[@]}")
}

knet_install() {
	local missing line apt dnf package packages=() left_out=
	missing=$(knet_missing "$@" | sort -u)
	[ -n "$missing" ] || return 0
	knet_installer=$(basename "$(command -v apt-get || command -v dnf)")
	if [ -z "$knet_installer" ]; then
		knet_say "neither apt-get nor dnf is here; needed: $(echo "$missing" | tr '\n' ';')"
		return 1
	fi
	if [ "$(id -u)" != 0 ]; then
		knet_say "run as root to install: $(echo "$missing" | cut -d'|' -f1 | tr -s ' \n' ' ')"
		return 1
	fi
	# Not local: the trap runs when this function is over.
	log=$(mktemp) || return 1
	trap 'rm -f "$log"; knet_policy_off' EXIT
	trap 'exit 130' INT TERM HUP
	if [ "$knet_installer" = apt-get ]; then
		knet_run "$log" apt-get update -qq || return 1
	fi
	while IFS='|' read -r apt dnf; do
		if [ "$apt" = cargo ] || [ "$apt" = cargo-tool ]; then
			line=$(knet_rust_packages "$apt") || return 1
			# shellcheck disable=SC2206
			packages+=($line)
			continue
		fi
		[ "$knet_installer" = apt-get ] && line=$apt || line=$dnf
		# shellcheck disable=SC2086
		if package=$(knet_first_known $line); then
			packages+=("$package")
		elif [ "$knet_installer" = apt-get ]; then
			knet_say "apt knows none of: $line (does apt-get update reach its servers?)"
			return 1
		else
			knet_say "left out, dnf knows none of: $line"
		fi
	done <<<"$missing"
	[ ${#packages[@]} -gt 0 ] || return 0
	[ "$knet_installer" = dnf ] || knet_keep_what_is_there
	[ ${#packages[@]} -gt 0 ] || return 0
	printf 'deps.sh: installing %s\n' "${packages[@]}" | awk '!seen[$0]++' >&2
	if [ "$knet_installer" = dnf ]; then
		knet_run "$log" dnf -q -y install "${packages[@]}"
	else
		knet_policy_on
		knet_run "$log" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-remove \
			--no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}"
	fi || return 1
	missing=$(knet_missing "$@" | grep -v '^cargo')
	if [ -n "$missing" ]; then
		knet_say "still missing after the installation: $(echo "$missing" | tr '\n' ';')"
		[ "$knet_installer" = dnf ] || [ -n "$left_out" ]
	fi
}

knet_deps() {
	local verb
	for verb in "${@:-none}"; do
		if ! knet_needs | cut -d'|' -f1 | grep -qw -- "$verb"; then
			echo "usage: deps.sh build|test|demo|PROGRAM..." >&2
			return 2
		fi
	done
	# In a subshell: its traps and shell options are nobody else's.
	(knet_install "$@") || return 1
	knet_find_cargo && return 0
	knet_say "no cargo of version $(knet_rust_wanted) or newer is here (found: $(cargo --version 2>/dev/null || echo none)); install one from rustup.rs"
	return 1
}

knet_deps "$@"
