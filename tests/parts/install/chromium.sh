#!/bin/sh
# Chromium, from Debian.
set -eu
command -v chromium >/dev/null && exit 0
command -v apt-get >/dev/null || { echo "chromium: install Chromium" >&2; exit 1; }
echo "Installing chromium ..."
apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || {
  apt-get update -qq >/dev/null
  apt-get install -y -qq --no-install-recommends chromium >/dev/null
}
