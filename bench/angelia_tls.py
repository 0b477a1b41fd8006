"""The cost of mutual TLS per call between processes: the same calls with and without it.

    python -m bench.angelia_tls [--calls 2000] [--bytes 1024] [--in-flight 1,32]

Server and caller share one process and one event loop (uvloop), so the CPU time per call is that of
both ends. The calls are unary; the response has the size of the request.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop

from strata.raft.v1 import raft_pb2
from strata_angelia.factory import TRANSPORTS, open_channel, open_server
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import CallContext, Channel
from strata_angelia.roles import RpcAccess
from strata_angelia.tls import PeerFiles, PeerTls
from strata_runtime.authority import issue, make_authority
from strata_runtime.roles import PeerRole

SERVICE = raft_pb2.DESCRIPTOR.services_by_name["RaftService"]
DELIVER = "/strata.raft.v1.RaftService/Deliver"


class Echo:
    """Answers at once."""

    async def deliver(
        self, request: raft_pb2.DeliverRequest, context: CallContext
    ) -> raft_pb2.DeliverResponse:
        """Take a frame."""
        return raft_pb2.DeliverResponse()

    async def fetch_snapshot(
        self, request: raft_pb2.FetchSnapshotRequest, context: CallContext
    ) -> None:
        """Not measured."""
        raise AssertionError("no snapshot is asked for")


async def measure(channel: Channel, calls: int, size: int, in_flight: int) -> tuple[float, float]:
    """Return the CPU and the wall time of a call in microseconds."""
    request = raft_pb2.DeliverRequest(envelopes=bytes(size))
    await channel.call(DELIVER, request, raft_pb2.DeliverResponse, timeout_s=30.0)

    async def one_after_the_other() -> None:
        for _ in range(calls // in_flight):
            await channel.call(DELIVER, request, raft_pb2.DeliverResponse, timeout_s=30.0)

    cpu, wall = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(one_after_the_other())
    done = calls // in_flight * in_flight
    return (
        (time.process_time() - cpu) / done * 1e6,
        (time.perf_counter() - wall) / done * 1e6,
    )


async def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Measure each transport with and without TLS, in turns."""
    make_authority(folder / "ca")
    issue(folder / "ca", folder / "storage", PeerRole.STORAGE, ["127.0.0.1"])
    tls = PeerTls(PeerFiles.in_folder(folder / "storage"), PeerRole.STORAGE)
    tls.load()
    storage = frozenset({PeerRole.STORAGE})
    options = AngeliaOptions(access_of={DELIVER: RpcAccess(storage, storage)})
    for transport in TRANSPORTS:
        channels: dict[str, Channel] = {}
        servers = []
        for name, used in (("plaintext", None), ("TLS", tls)):
            server = open_server("127.0.0.1", 0, transport, options=options, tls=used)
            server.register(SERVICE, Echo())
            servers.append(server)
            endpoint = await server.start()
            channels[name] = open_channel(endpoint, transport, options=options, tls=used)
        for in_flight in map(int, arguments.in_flight.split(",")):
            best: dict[str, tuple[float, float]] = {}
            for _ in range(arguments.rounds):
                for name, channel in channels.items():
                    found = await measure(channel, arguments.calls, arguments.bytes, in_flight)
                    best[name] = min(best.get(name, found), found)
            shown = "; ".join(
                f"{name} {cpu:.0f} us CPU, {wall:.0f} us" for name, (cpu, wall) in best.items()
            )
            print(f"{transport}, {arguments.bytes} bytes, {in_flight} in flight: {shown}")
        for channel in channels.values():
            await channel.close()
        for server in servers:
            await server.stop(0)


def main() -> None:
    """Measure and print a line for each transport and number of calls in flight."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--bytes", type=int, default=1_024)
    parser.add_argument("--in-flight", default="1,32")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(compare(arguments, Path(folder)))


if __name__ == "__main__":
    main()
