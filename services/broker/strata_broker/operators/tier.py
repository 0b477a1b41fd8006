"""Requests of operators and jobs about the tier: progress of uploads, pause, commits, sweeps.

Every raft group uploads its own messages, so its leader is asked. Failures are `RequestError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import tier_pb2
from strata_broker.base.errors import MalformedError
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError

_SERVICE = "/strata.storage.v1.TierService"
# Raft groups asked at once.
_CALLS_MAX = 16
# Additional time for a leader that reads back an object or all of its rows.
_PROOF_S = 120.0
_ROWS_S = 20.0
_FLUSH_S = 600.0

Response = TypeVar("Response", bound=Message)


class TierOperations:
    """See the module docstring."""

    def __init__(self, view: MetadataView, storage: StorageClient, config: MetadataSection) -> None:
        self._view = view
        self._storage = storage
        self._timeout_s = config.try_timeout_ms / 1000
        self._turns = asyncio.Semaphore(_CALLS_MAX)

    async def status(self) -> list[admin_pb2.TierGroup]:
        """Return the state of every raft group, by number; UNREACHABLE if it does not answer."""
        raft_groups = [row.raft_group for row in self._view.raft_groups()]
        # There are as many calls as raft groups, a few at a time.
        return list(await asyncio.gather(*map(self._status, raft_groups)))

    async def pause(self, raft_groups: Sequence[int], *, paused: bool) -> list[int]:
        """Pause or resume uploads; no raft group named: of all raft groups.

        Returns:
            The raft groups, by number.

        Raises:
            RequestError: BAD_REQUEST: there is no tier; a raft group does not exist or does not
                answer: the raft groups before it have obeyed.
        """
        known = [row.raft_group for row in self._view.raft_groups()]
        strangers = set(raft_groups) - set(known)
        if strangers:
            raise RequestError(Code.NOT_FOUND, f"no raft group {min(strangers)}")
        wanted = sorted(raft_groups or known)
        for raft_group in wanted:
            await self._of_job(
                raft_group,
                f"{_SERVICE}/SetTierPaused",
                tier_pb2.SetTierPausedRequest(raft_group=raft_group, paused=paused),
                tier_pb2.SetTierPausedResponse,
            )
        return wanted

    async def flush(self, request: admin_pb2.FlushTierRequest) -> admin_pb2.FlushTierResponse:
        """Let a raft group upload waiting messages and write the manifest for a restore.

        Raises:
            RequestError: BAD_REQUEST, there is no tier, or it is paused; else as
                `replace_ranges`.
        """
        response = await self._of_job(
            request.raft_group,
            f"{_SERVICE}/FlushTier",
            tier_pb2.FlushTierRequest(raft_group=request.raft_group),
            tier_pb2.FlushTierResponse,
            wait_s=_FLUSH_S,
        )
        return admin_pb2.FlushTierResponse(raft_index=response.raft_index)

    async def replace_ranges(
        self, request: admin_pb2.ReplaceTierRangesRequest
    ) -> admin_pb2.ReplaceTierRangesResponse:
        """Commit an object that a job wrote.

        Raises:
            RequestError: BAD_REQUEST: malformed, or the tier is missing or paused; NOT_FOUND:
                there is no such raft group; another refusal, or no answer in time.
        """
        response = await self._of_job(
            request.raft_group,
            f"{_SERVICE}/ReplaceTierRanges",
            tier_pb2.ReplaceTierRangesRequest(raft_group=request.raft_group, change=request.change),
            tier_pb2.ReplaceTierRangesResponse,
            wait_s=_PROOF_S,
        )
        return admin_pb2.ReplaceTierRangesResponse(replaced_ranges=response.replaced_ranges)

    async def plan_sweep(
        self, request: admin_pb2.PlanTierSweepRequest
    ) -> admin_pb2.PlanTierSweepResponse:
        """Return the objects that a job may delete.

        Raises:
            RequestError: as `replace_ranges`.
        """
        response = await self._of_job(
            request.raft_group,
            f"{_SERVICE}/PlanTierSweep",
            tier_pb2.PlanTierSweepRequest(raft_group=request.raft_group, old_keys=request.old_keys),
            tier_pb2.PlanTierSweepResponse,
            wait_s=_ROWS_S,
        )
        doomed = [
            admin_pb2.DoomedObject(object_id=each.object_id, space=each.space, key=each.key)
            for each in response.doomed
        ]
        return admin_pb2.PlanTierSweepResponse(
            doomed=doomed, orphan_keys=response.orphan_keys, valid_ms=response.valid_ms
        )

    async def forget(
        self, request: admin_pb2.ForgetTierObjectsRequest
    ) -> admin_pb2.ForgetTierObjectsResponse:
        """Forget the objects that a job deleted.

        Raises:
            RequestError: as `replace_ranges`.
        """
        response = await self._of_job(
            request.raft_group,
            f"{_SERVICE}/ForgetTierObjects",
            tier_pb2.ForgetTierObjectsRequest(
                raft_group=request.raft_group, object_ids=request.object_ids
            ),
            tier_pb2.ForgetTierObjectsResponse,
        )
        return admin_pb2.ForgetTierObjectsResponse(forgotten=response.forgotten)

    async def _of_job(
        self,
        raft_group: int,
        rpc: str,
        request: Message,
        response_type: type[Response],
        wait_s: float = 0.0,
    ) -> Response:
        """Call a leader with a job's request; a malformed request is the job's fault."""
        if all(row.raft_group != raft_group for row in self._view.raft_groups()):
            raise RequestError(Code.NOT_FOUND, f"no raft group {raft_group}")
        try:
            return await self._storage.call(raft_group, rpc, request, response_type, wait_s=wait_s)
        except MalformedError as failure:
            raise RequestError(Code.BAD_REQUEST, failure.text) from failure

    async def _status(self, raft_group: int) -> admin_pb2.TierGroup:
        try:
            async with self._turns:
                response = await self._storage.call(
                    raft_group,
                    f"{_SERVICE}/GetTierStatus",
                    tier_pb2.GetTierStatusRequest(raft_group=raft_group),
                    tier_pb2.GetTierStatusResponse,
                    timeout_s=self._timeout_s,
                )
        except RequestError as failure:
            return admin_pb2.TierGroup(raft_group=raft_group, unreachable=failure.text)
        status = response.status
        return admin_pb2.TierGroup(
            raft_group=raft_group,
            store=status.store,
            paused=status.paused,
            backlog_bytes=status.backlog_bytes,
            oldest_ms=status.oldest_ms,
            uploading_queues=status.uploading_queues,
            objects=status.objects,
            object_bytes=status.object_bytes,
            queues=status.queues,
            last_failure=status.last_failure,
            topics=[
                admin_pb2.TierTopicCost(
                    topic_id=topic.topic_id,
                    name=topic.name,
                    put_requests=topic.put_requests,
                    get_requests=topic.get_requests,
                    uploaded_bytes=topic.uploaded_bytes,
                    downloaded_bytes=topic.downloaded_bytes,
                )
                for topic in status.topics
            ],
        )
