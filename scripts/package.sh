#!/usr/bin/env bash
# Makes the packages knet-rs: an RPM and a deb, out of one tree of files.
#
# The layout stands in the function lay_out below; packaging/ holds what is not made by cargo.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")

usage() {
  cat <<'TEXT'
usage: scripts/package.sh [--rpm] [--deb] [--out DIR] [--release N] [--conf FILE] [--no-build]

Builds (cargo build --release) and packages: knet-rs-VERSION-N.ARCH.rpm and knet-rs_VERSION-N_ARCH.deb in DIR
(default: target/packages). Without --rpm and --deb both are made. --conf names the config that the packages carry
(default: conf/knet_comm.conf). --no-build takes the binaries that are there;
KNET_BUILD=debug takes those of the debug build. SOURCE_DATE_EPOCH makes the result reproducible.
TEXT
}

die() { echo "package.sh: $*" >&2; exit 1; }

formats=()
out=
release=1
conf=$root/conf/knet_comm.conf
build=1
while [ $# -gt 0 ]; do
  case $1 in
    --rpm|--deb) formats+=("${1#--}"); shift ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --release) release=${2:?--release needs a number}; shift 2 ;;
    --conf) conf=${2:?--conf needs a file}; shift 2 ;;
    --no-build) build=0; shift ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 64 ;;
  esac
done
[ ${#formats[@]} -gt 0 ] || formats=(rpm deb)
[[ $release =~ ^[0-9][0-9.]*$ ]] || die "the release '$release' is no number"
profile=${KNET_BUILD:-release}
binaries=$root/target/$profile
out=${out:-$root/target/packages}
version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
machine=$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

for format in "${formats[@]}"; do
  case $format in
    rpm) command -v rpmbuild >/dev/null || die "rpmbuild is missing (Debian: apt-get install rpm)" ;;
    deb) command -v dpkg-deb >/dev/null || die "dpkg-deb is missing (dnf install dpkg)" ;;
  esac
done
if [ "$build" = 1 ]; then
  options=(--workspace)
  [ "$profile" = debug ] || options+=(--release)
  (cd "$root" && cargo build --quiet "${options[@]}")
fi
for file in knetd knetctl libknet_frame.so libknet_dpdk.so; do
  [ -e "$binaries/$file" ] || die "$binaries/$file is not built"
done
# A plug-in that was built without DPDK's headers opens no port: no package is made of it.
readelf -d "$binaries/libknet_dpdk.so" | grep -q 'NEEDED.*librte_eal' ||
  die "libknet_dpdk.so was built without DPDK: scripts/deps.sh build, then build again"
# A program and a host of different builds do not serve each other.
build_version=$("$binaries/knetd" --version | cut -d' ' -f2)
[ "$("$binaries/knetctl" --version | cut -d' ' -f2)" = "$build_version" ] && grep -qF "$build_version" "$binaries/libknet_frame.so" ||
  die "knetd, knetctl and libknet_frame.so are not of one build: cargo build --release"

. "$here/folder.sh"
knet_folder packages
work=$knet_work
trap 'rm -rf "$work"' EXIT
umask 022

put() { # MODE SOURCE TARGET
  install -D -m "$1" "$2" "$tree/$3"
}

binary() { # SOURCE TARGET: stripped, once for all formats
  local stripped
  stripped=$work/stripped/$(basename "$1")
  if [ ! -e "$stripped" ]; then
    mkdir -p "$work/stripped"
    strip --strip-unneeded --remove-section=.comment -o "$stripped" "$1"
  fi
  put 755 "$stripped" "$2"
}

script() { # SOURCE TARGET: by its interpreter's path, as packages call it
  put 755 "$1" "$2"
  sed -i '1s,/usr/bin/env bash,/bin/bash,' "$tree/$2"
}

gzipped() { # SOURCE TARGET
  mkdir -p "$(dirname "$tree/$2")"
  gzip -9n <"$1" >"$tree/$2.gz"
  chmod 644 "$tree/$2.gz"
}

# The files of a package. LIBDIR: where the libraries really lie; /usr/lib64 has them under K-NET's names in any case.
lay_out() { # LIBDIR ZSH-FOLDER
  local file name libdir=$1 zsh=$2
  binary "$binaries/knetd" usr/bin/knetd
  ln -s knetd "$tree/usr/bin/knet_mp_daemon"
  binary "$binaries/knetctl" usr/bin/knetctl
  for name in libknet_frame.so libknet_dpdk.so; do
    binary "$binaries/$name" "$libdir/$name"
    if [ "$libdir" != usr/lib64 ]; then
      mkdir -p "$tree/usr/lib64"
      ln -s "../${libdir#usr/}/$name" "$tree/usr/lib64/$name"
    fi
  done
  put 600 "$conf" etc/knet/knet_comm.conf
  put 640 "$root/packaging/etc/knet.rsyslog" etc/rsyslog.d/knet_rsyslog.conf
  put 644 "$root/packaging/etc/knet.logrotate" etc/logrotate.d/knet
  put 644 "$root/packaging/etc/knet.sysctl" etc/sysctl.d/60-knet.conf
  put 644 "$root/packaging/systemd/knetd.service" usr/lib/systemd/system/knetd.service
  put 644 "$root/packaging/systemd/knet.sysusers" usr/lib/sysusers.d/knet.conf
  put 644 "$root/packaging/systemd/knet.tmpfiles" usr/lib/tmpfiles.d/knet.conf
  install -d -m 750 "$tree/var/log/knet" "$tree/etc/knet/run"
  for file in "$root"/packaging/systemd/drop-ins/*.conf; do
    put 644 "$file" "usr/share/knet/drop-ins/$(basename "$file")"
  done
  for file in "$root"/conf/profiles/*; do
    put 644 "$file" "usr/share/knet/profiles/$(basename "$file")"
  done
  put 644 "$root/conf/schema.json" usr/share/knet/schema.json
  put 644 "$root/conf/grafana-dashboard.json" usr/share/knet/grafana-dashboard.json
  script "$root/scripts/lab.sh" usr/share/knet/lab.sh
  script "$root/scripts/setup-nic.sh" usr/share/knet/setup-nic.sh
  put 644 "$root/README.md" usr/share/doc/knet-rs/README.md
  for file in "$root"/docs/*.md; do
    put 644 "$file" "usr/share/doc/knet-rs/docs/$(basename "$file")"
  done
  pages "$zsh"
}

# Man pages and completions, which knetctl makes of its command lines and of the table of keys; packaging/man has those
# that say more.
pages() { # ZSH-FOLDER
  local file name made=$work/pages
  "$binaries/knetctl" generate "$made"
  for file in "$root"/packaging/man/*.[1-9]; do
    name=$(basename "$file")
    cp "$file" "$made/man${name##*.}/$name"
  done
  for file in "$made"/man[1-9]/*; do
    gzipped "$file" "usr/share/man/${file#"$made/"}"
  done
  for name in knetctl knetd; do
    put 644 "$made/completions/$name.bash" "usr/share/bash-completion/completions/$name"
    put 644 "$made/completions/_$name" "$1/_$name"
    put 644 "$made/completions/$name.fish" "usr/share/fish/vendor_completions.d/$name.fish"
  done
}

# The lines of %files: every file of the tree, and the folders that are ours alone.
file_list() {
  echo '%defattr(-,root,root,-)'
  (cd "$tree" && find . ! -type d -printf '%P\n' | LC_ALL=C sort) | while read -r path; do
    case $path in
    etc/knet/*) echo "%attr(0600,root,root) %config(noreplace) /$path" ;;
    etc/rsyslog.d/*) echo "%attr(0640,root,root) %config(noreplace) /$path" ;;
    etc/*) echo "%config(noreplace) /$path" ;;
    usr/share/doc/*|usr/share/man/*) echo "%doc /$path" ;;
    *) echo "/$path" ;;
    esac
  done
  for path in /etc/knet /usr/share/knet /usr/share/knet/drop-ins /usr/share/knet/profiles /usr/share/doc/knet-rs \
    /usr/share/doc/knet-rs/docs; do
    echo "%dir $path"
  done
  for path in /var/log/knet /etc/knet/run; do
    echo "%dir %attr(0750,root,root) $path"
  done
}

make_rpm() {
  tree=$work/rpm
  mkdir -p "$tree"
  lay_out usr/lib64 usr/share/zsh/site-functions
  file_list >"$work/files"
  rpmbuild -bb --quiet --target "$machine-linux" \
    --define "_topdir $work/rpmbuild" --define "_rpmdir $work/rpms" --define "_tmppath $work" \
    --define "stage $tree" --define "filelist $work/files" \
    --define "knet_version $version" --define "knet_release $release" \
    --define "knet_date $(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" \
    --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
    --define '_buildhost localhost' \
    "$root/packaging/knet-rs.spec" >"$work/rpm.log" 2>&1 || { cat "$work/rpm.log" >&2; die "rpmbuild failed"; }
  mv "$work"/rpms/*/*.rpm "$out/"
}

make_deb() {
  local architecture multiarch depends
  architecture=$(dpkg --print-architecture)
  multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$machine-linux-gnu")
  tree=$work/deb
  mkdir -p "$tree/DEBIAN"
  # Debian's units let code be mapped from /usr/lib only (Redis: NoExecPaths=/), so the libraries lie there.
  lay_out "usr/lib/$multiarch" usr/share/zsh/vendor-completions
  mkdir -p "$tree/usr/share/doc/knet-rs"
  sed "s/@VERSION@/$version-$release/; s/@DATE@/$(date -u -R -d "@$SOURCE_DATE_EPOCH")/" \
    "$root/packaging/deb/changelog" >"$work/changelog"
  gzipped "$work/changelog" usr/share/doc/knet-rs/changelog.Debian
  put 644 "$root/packaging/deb/copyright" usr/share/doc/knet-rs/copyright
  for script in postinst prerm postrm; do
    put 755 "$root/packaging/deb/$script" "DEBIAN/$script"
  done
  (cd "$tree" && find etc -type f -printf '/%p\n' | LC_ALL=C sort) >"$tree/DEBIAN/conffiles"
  # dpkg-shlibdeps wants a source package around it.
  mkdir -p "$work/shlibs/debian"
  printf 'Source: knet-rs\n\nPackage: knet-rs\nArchitecture: any\n' >"$work/shlibs/debian/control"
  depends=$(cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info \
    "$tree/usr/bin/knetd" "$tree/usr/bin/knetctl" "$tree/usr/lib/$multiarch"/libknet_*.so 2>"$work/shlibs.log" |
    sed -n 's/^shlibs:Depends=//p')
  [[ $depends == *librte-eal* ]] || { cat "$work/shlibs.log" >&2; die "dpkg-shlibdeps finds no DPDK: $depends"; }
  sed -e "s/@VERSION@/$version-$release/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@DEPENDS@/$depends/" \
    -e "s/@SIZE@/$(du -k -s --exclude=DEBIAN "$tree" | cut -f1)/" "$root/packaging/deb/control" >"$tree/DEBIAN/control"
  (cd "$tree" && find usr etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
  find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch -h -d "@$SOURCE_DATE_EPOCH"
  dpkg-deb --root-owner-group --build "$tree" "$out/knet-rs_$version-${release}_$architecture.deb" >/dev/null
}

mkdir -p "$out"
for format in "${formats[@]}"; do "make_$format"; done
for format in "${formats[@]}"; do ls "$out"/knet-rs[-_]"$version-$release"[._]*."$format"; done
