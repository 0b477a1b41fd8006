#!/bin/sh
# The official Go client and its driver, into build/compat/go.
. "$(dirname "$0")/common.sh"
need go "Go 1.24 or newer"
begin go go.mod go.sum '*.go'
cd "$source"
run go build -trimpath -o "$target/driver" .
finish
