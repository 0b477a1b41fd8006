#!/bin/sh
# Build stand-ins for public images, under their names, where no image can be pulled: Debian packages,
# the Rust toolchain of this machine, and the S3 server of `make tier-s3`. An image that is there
# already is left alone. Needs root, debootstrap, cargo and a Docker engine that can build with the
# host's network.
set -eu
cd "$(dirname "$0")/../.."
python=python:3.11-slim-bookworm rust=rust:1.95-slim-bookworm
s3=versity/versitygw:v1.8.0 prometheus=prom/prometheus:v2.55.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
docker=${DOCKER:-docker}
export DOCKER_BUILDKIT=1

missing() { ! $docker image inspect "$1" >/dev/null 2>&1; }

if missing $python; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
        bookworm "$work/tree" >"$work/debootstrap.log"
    # The image trusts the same authorities as this machine.
    cp -L /etc/ssl/certs/ca-certificates.crt "$work/tree/etc/ssl/certs/ca-certificates.crt"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$work/tree/etc/pip.conf"
    rm -rf "$work"/tree/var/cache/apt/archives/*.deb "$work"/tree/var/lib/apt/lists/* \
        "$work"/tree/usr/share/doc "$work"/tree/usr/share/man "$work"/tree/usr/share/locale
    tar -C "$work/tree" --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' -c . |
        $docker import - $python >/dev/null
fi
if missing $rust; then
    mkdir "$work/rust"
    cp -a "$(rustc --print sysroot)" "$work/rust/toolchain"
    rm -rf "$work/rust/toolchain/share"
    printf '%s\n' "FROM $python" \
        'RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev' \
        'COPY toolchain /usr/local/rust' 'ENV PATH=/usr/local/rust/bin:$PATH' >"$work/rust/Dockerfile"
    $docker build --quiet --network host -t $rust "$work/rust"
fi
if missing $s3; then
    make --no-print-directory tier-s3
    mkdir "$work/s3"
    cp build/parts/s3/versitygw "$work/s3/"
    printf '%s\n' "FROM $python" 'COPY versitygw /usr/local/bin/' 'VOLUME /data' \
        'ENTRYPOINT ["versitygw"]' >"$work/s3/Dockerfile"
    $docker build --quiet -t $s3 "$work/s3"
fi
if missing $prometheus; then
    mkdir "$work/prometheus"
    printf '%s\n' "FROM $python" \
        'RUN apt-get update && apt-get install -y --no-install-recommends prometheus' \
        'RUN install -d -o prometheus /prometheus' 'USER prometheus' 'VOLUME /prometheus' \
        'ENTRYPOINT ["prometheus"]' >"$work/prometheus/Dockerfile"
    $docker build --quiet --network host -t $prometheus "$work/prometheus"
fi
