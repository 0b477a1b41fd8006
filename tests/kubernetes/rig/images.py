"""Images without a registry: the pause image is made here, from a few lines of Go."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

from tests.kubernetes.rig.processes import run

_NAME = "localhost/rig/pause:1"
_SOURCE = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
"""


def pause_image(folder: Path) -> Path:
    """Return an archive of the image that holds a pod's namespaces; made if it is not there."""
    archive = folder / "pause.tar"
    if archive.exists():
        return archive
    (folder / "pause").mkdir(parents=True, exist_ok=True)
    source, program = folder / "pause" / "main.go", folder / "pause" / "pause"
    source.write_text(_SOURCE)
    os.environ["CGO_ENABLED"] = "0"
    run("go", "build", "-ldflags=-s -w", "-o", str(program), str(source))
    layer = _tar({"pause": (program.read_bytes(), 0o755)})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [_NAME], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": (layer, 0o644),
        "config.json": (json.dumps(config).encode(), 0o644),
        "manifest.json": (json.dumps(manifest).encode(), 0o644),
    }
    archive.write_bytes(_tar(files))
    return archive


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()
