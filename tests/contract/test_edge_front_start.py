"""How the front process is started beside a running gRPC server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from strata_runtime.tls import self_signed

# uvloop's own subprocesses fork: shown by the second number.
PROGRAM = """
import asyncio, ctypes, sys
from pathlib import Path
import uvloop
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.options import EdgeOptions
from strata_runtime.tls import Certificate

forks = []
CALLBACK = ctypes.CFUNCTYPE(None)
prepare = CALLBACK(lambda: forks.append(1))
ctypes.CDLL(None).__register_atfork(prepare, None, None, None)

async def main():
    certificate = Certificate(Path(sys.argv[1]), Path(sys.argv[2]))
    edge = GrpcioEdge(EdgeOptions(port=0, front=True, certificate=certificate))
    await edge.start()
    await edge.stop(0.1)
    print(len(forks))
    process = await asyncio.create_subprocess_exec("/bin/true")
    await process.wait()
    print(len(forks))

uvloop.run(main())
"""


def test_the_server_is_not_forked(tmp_path: Path) -> None:
    """A fork runs gRPC's fork handlers in the midst of its threads; now and then they abort."""
    certificate = self_signed(tmp_path, ["localhost"])
    done = subprocess.run(
        [
            *(sys.executable, "-c", PROGRAM),
            *(str(certificate.certificate_file), str(certificate.key_file)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, by_front, in_all = map(int, done.stdout.splitlines()[-2:])
    assert by_front == 0
    assert in_all > 0, "the count would miss a fork"
