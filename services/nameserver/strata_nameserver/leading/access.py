"""Users, policies and cluster keys as the metadata leader changes them.

Processes of an older version stop at rows of a kind that they do not know, so the first such row
waits until every nameserver and storage node has said that it knows them.
"""

from __future__ import annotations

from collections.abc import Callable

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.rows import ROW_FORMAT
from strata_mq.access import new_secret_key
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts import cluster_keys, policies, users
from strata_nameserver.drafts.change import MakeChange
from strata_nameserver.state.draft import Draft
from strata_nameserver.state.topology import Topology

RandomBytes = Callable[[int], bytes]

_KINDS = (meta_pb2.NODE_KIND_NAMESERVER, meta_pb2.NODE_KIND_STORAGE)


class Access:
    """See the module docstring.

    Args:
        change: proposes a change.
        config: limits.
        random_bytes: of which keys are made; nobody must be able to guess them.
    """

    def __init__(
        self, change: MakeChange, config: NameserverConfig, random_bytes: RandomBytes
    ) -> None:
        self._change = change
        self._config = config
        self._random_bytes = random_bytes

    async def create_user(self, user: meta_pb2.User) -> meta_pb2.User:
        """Make a user and return its row, with its secret key.

        Raises:
            MetaRefused: the reason for a refusal; so for every method here.
        """
        secret = self.new_secret()

        def create(draft: Draft) -> meta_pb2.User:
            self._check_readers(draft.topology)
            return users.create_user(draft, user, self._config, lambda: secret)

        return await self._change(create)

    async def update_user(self, request: meta_pb2.UpdateUserRequest) -> meta_pb2.User:
        """Change a user and return its row, with its secret key."""
        secret = self.new_secret()
        return await self._change(
            lambda draft: users.update_user(
                draft, request.user, request.update_mask, request.previous_valid_ms, lambda: secret
            )
        )

    async def delete_user(self, name: str) -> int:
        """Delete a user with its policies and return the revision of that."""

        def delete(draft: Draft) -> int:
            users.delete_user(draft, name)
            return draft.revision

        return await self._change(delete)

    async def ensure_admin(self, name: str, secret_key: str, *, unless_any: bool) -> bool:
        """Make a user an enabled admin with this secret key; return whether it was none before.

        Args:
            name: of the user; one that is not there is created.
            secret_key: its secret key from now on.
            unless_any: do nothing if any admin is enabled already.
        """

        def ensure(draft: Draft) -> bool:
            if not (unless_any and draft.access.admins):
                self._check_readers(draft.topology)
                users.ensure_admin(draft, name, secret_key)
            return bool(draft.changes)

        return await self._change(ensure)

    async def create_policy(self, policy: meta_pb2.Policy) -> meta_pb2.Policy:
        """Make a policy of a user and return its row."""
        return await self._change(lambda draft: policies.create_policy(draft, policy, self._config))

    async def delete_policy(self, policy_id: int) -> int:
        """Delete a policy and return the revision of that."""

        def delete(draft: Draft) -> int:
            policies.delete_policy(draft, policy_id)
            return draft.revision

        return await self._change(delete)

    async def rotate_cluster_key(self, newest_key_id: int = 0) -> meta_pb2.ClusterKey:
        """Make a new cluster key and return its row.

        Args:
            newest_key_id: of the key that it follows: a repeat of a call gets the key of the first
                try. 0: a new one is made in any case.
        """

        def rotate(draft: Draft) -> meta_pb2.ClusterKey:
            self._check_readers(draft.topology)
            return cluster_keys.rotate_cluster_key(draft, self._random_bytes, newest_key_id)

        return await self._change(rotate)

    async def ensure_cluster_key(self) -> None:
        """Make the first cluster key, if there is none."""

        def ensure(draft: Draft) -> None:
            if not draft.access.cluster_keys:
                self._check_readers(draft.topology)
                cluster_keys.ensure_cluster_key(draft, self._random_bytes)

        await self._change(ensure)

    def new_secret(self) -> str:
        """Return a new secret key."""
        return new_secret_key(self._random_bytes)

    def _check_readers(self, topology: Topology) -> None:
        for node in topology.nodes.values():
            # A node in this process has its version, also where its row is an older one.
            is_local = all(endpoint.startswith("inproc:") for endpoint in node.endpoints)
            if node.kind in _KINDS and node.row_format < ROW_FORMAT and not is_local:
                raise MetaRefused(
                    meta_pb2.META_OUTCOME_CONFLICT,
                    f"node {node.node_id} runs an older version, which does not know users and "
                    "cluster keys: upgrade it first",
                )
