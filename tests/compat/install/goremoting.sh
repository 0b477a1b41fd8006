#!/bin/sh
# The Go client of the remoting protocol, with its driver, into build/compat/goremoting.
. "$(dirname "$0")/common.sh"
need go "Go 1.24 or newer"
begin goremoting go.mod go.sum '*.go'
cd "$source"
run go build -trimpath -o "$target/driver" .
finish
