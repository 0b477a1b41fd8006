#!/bin/sh
# versitygw, an S3 server over a folder, into build/parts/s3.
. "$(dirname "$0")/common.sh"
need go "Go 1.25 or newer"
begin s3
CGO_ENABLED=0 GOBIN="$target" run go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
finish
