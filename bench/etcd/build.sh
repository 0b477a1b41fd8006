#!/bin/sh
# Builds etcd, which bench/kv.py compares with, into build/bench/etcd (needs Go).
set -eu
cd "$(dirname "$0")/../.."
module=build/bench/etcd-module
mkdir -p "$module"
[ -f "$module/go.mod" ] || (cd "$module" && go mod init strata.example/etcd)
(cd "$module" && go get go.etcd.io/etcd/server/v3@v3.6.8)
(cd "$module" && go build -mod=mod -o ../etcd go.etcd.io/etcd/server/v3)
