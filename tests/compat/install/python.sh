#!/bin/sh
# The official Python client, into an environment of its own: its generated code and ours cannot be
# loaded by one process.
. "$(dirname "$0")/common.sh"
need python3 "Python 3.11 or newer with venv"
begin python requirements.lock
run python3 -m venv "$target/venv"
run "$target/venv/bin/pip" install --disable-pip-version-check --require-hashes \
  -r "$source/requirements.lock"
finish
