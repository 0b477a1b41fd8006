# The four installers share these lines: build/compat/<client> is made anew unless its marker names
# the same sources; the output of all commands goes to build/compat/<client>.log.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)

# need COMMAND WHAT: ends with one line when a program is missing.
need() {
  command -v "$1" >/dev/null || { echo "compat: $2 is missing" >&2; exit 1; }
}

# begin CLIENT SOURCE...: ends at once when nothing changed since the last time. With $variant the
# target is build/compat/CLIENT-VARIANT.
begin() {
  client=$1
  source="$here/../clients/$client"
  target="$root/build/compat/$client${variant:+-$variant}"
  log="$target.log"
  shift
  marker=$(cd "$source" && cat $* "$here/$client.sh" "$here/common.sh" | cksum | tr ' ' -)
  if [ "$(cat "$target/.installed" 2>/dev/null)" = "$marker" ]; then exit 0; fi
  echo "Installing the official $client client into ${target#"$root/"} ..."
  rm -rf "$target"
  mkdir -p "$target"
  : >"$log"
}

# run COMMAND...: runs it with its output in the log, whose end is shown when it fails.
run() {
  "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "compat: failed: $1, see $log" >&2; exit 1; }
}

finish() {
  echo "$marker" >"$target/.installed"
}
