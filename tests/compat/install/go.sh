#!/bin/sh
# The official Go client, its driver and the example of the documentation, into build/compat/go.
. "$(dirname "$0")/common.sh"
need go "Go 1.24 or newer"
example="$root/docs/examples/go"
begin go go.mod go.sum '*.go' "$example/go.mod" "$example/go.sum" "$example/main.go"
cd "$source"
run go build -trimpath -o "$target/driver" .
cd "$example"
run go build -trimpath -o "$target/example" .
finish
