#!/bin/sh
# fake-gcs-server, an emulator of Google Cloud Storage, into build/parts/gcs.
. "$(dirname "$0")/common.sh"
need go "Go 1.26 or newer"
begin gcs
CGO_ENABLED=0 GOBIN="$target" run go install github.com/fsouza/fake-gcs-server@v1.56.1
finish
