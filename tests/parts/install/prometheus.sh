#!/bin/sh
# Prometheus with promtool, from Debian.
set -eu
command -v promtool >/dev/null && command -v prometheus >/dev/null && exit 0
command -v apt-get >/dev/null || { echo "prometheus: install Prometheus 2.42 or newer" >&2; exit 1; }
echo "Installing prometheus ..."
apt-get install -y -qq --no-install-recommends prometheus >/dev/null 2>&1 || {
  apt-get update -qq >/dev/null
  apt-get install -y -qq --no-install-recommends prometheus >/dev/null
}
