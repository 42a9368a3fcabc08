# A folder for temporary files with a lock that its owner holds while it lives; to be sourced.
#
# A script that is killed leaves its folder behind: the next one of the same kind finds that nobody holds the lock, and
# removes it. Programs that the script has started hold the lock as well.

# knet_folder KIND [REMOVE]: makes one and says in knet_work where; REMOVE (rm -rf) is called with each dead one.
knet_folder() {
  local base=${TMPDIR:-/tmp} old lock
  for old in "$base/knet-$1."??????; do
    # Only this user's own: nobody else can make a file of his there.
    [ -O "$old/.owner" ] && [ ! -L "$old" ] && [ ! -L "$old/.owner" ] || continue
    { exec {lock}<"$old/.owner"; } 2>/dev/null || continue
    if flock -n "$lock"; then
      ${2:-rm -rf} "$old" || true
    fi
    exec {lock}<&-
  done
  knet_work=$(mktemp -d "$base/knet-$1.XXXXXX")
  # Nobody sees the lock before it is held.
  exec {lock}>"$knet_work/.owner.new"
  flock "$lock"
  mv "$knet_work/.owner.new" "$knet_work/.owner"
}
