#!/bin/sh
# The client in C++ of the remoting protocol, with its Python face, into an environment of its own.
. "$(dirname "$0")/common.sh"
need python3 "Python 3.11 or newer with venv"
begin cpp requirements.lock
run python3 -m venv "$target/venv"
run "$target/venv/bin/pip" install --disable-pip-version-check --require-hashes \
  -r "$source/requirements.lock"
finish
