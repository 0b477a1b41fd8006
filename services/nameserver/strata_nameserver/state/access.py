"""Users and their policies as decisions need them: small, so kept beside the speculative rows."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range

_KINDS = (MetadataRowKind.USER, MetadataRowKind.POLICY, MetadataRowKind.CLUSTER_KEY)


class AccessIndex:
    """The enabled admins, the policies of each user and the ids of the cluster keys.

    Attributes:
        admins: names of the admins that are not disabled.
        cluster_keys: ids of the cluster keys.
    """

    def __init__(self) -> None:
        self.admins: set[str] = set()
        self.cluster_keys: set[int] = set()
        self._policies: dict[str, set[int]] = {}
        # A deleted policy's change names its id only.
        self._owners: dict[int, str] = {}

    @classmethod
    def load(cls, store: MetadataStore) -> AccessIndex:
        """Read the rows."""
        index = cls()
        for kind in _KINDS:
            for _, value in store.scan(*kind_range(kind)):
                if kind is MetadataRowKind.USER:
                    index._take_user(meta_pb2.User.FromString(value), deleted=False)
                elif kind is MetadataRowKind.POLICY:
                    index._take_policy(meta_pb2.Policy.FromString(value), deleted=False)
                else:
                    index.cluster_keys.add(meta_pb2.ClusterKey.FromString(value).key_id)
        return index

    def take(self, change: meta_pb2.Change) -> None:
        """Take in a change; those of other rows do not matter here."""
        kind = change.WhichOneof("row")
        if kind == "user":
            self._take_user(change.user, deleted=change.deleted)
        elif kind == "policy":
            self._take_policy(change.policy, deleted=change.deleted)
        elif kind == "cluster_key" and change.deleted:
            self.cluster_keys.discard(change.cluster_key.key_id)
        elif kind == "cluster_key":
            self.cluster_keys.add(change.cluster_key.key_id)

    def policies_of(self, user: str) -> list[int]:
        """Return the ids of a user's policies, ascending."""
        return sorted(self._policies.get(user, ()))

    def is_last_admin(self, user: str) -> bool:
        """Whether a user is the only enabled admin."""
        return self.admins == {user}

    def _take_user(self, row: meta_pb2.User, *, deleted: bool) -> None:
        if row.admin and not row.disabled and not deleted:
            self.admins.add(row.name)
        else:
            self.admins.discard(row.name)

    def _take_policy(self, row: meta_pb2.Policy, *, deleted: bool) -> None:
        owner = self._owners.pop(row.policy_id, row.user)
        of_user = self._policies.setdefault(owner, set())
        if deleted:
            of_user.discard(row.policy_id)
        else:
            of_user.add(row.policy_id)
            self._owners[row.policy_id] = owner
        if not of_user:
            del self._policies[owner]
