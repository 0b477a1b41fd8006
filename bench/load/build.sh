#!/bin/sh
# Build the load generator into build/bench/load.
set -eu
cd "$(dirname "$0")"
command -v go >/dev/null || { echo "bench: Go 1.24 or newer is missing" >&2; exit 1; }
mkdir -p ../../build/bench
exec go build -trimpath -o ../../build/bench/load .
