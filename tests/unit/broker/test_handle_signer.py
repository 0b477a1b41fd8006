"""Key that signs handles, and handles that are good, as keys and brokers come and go."""

from __future__ import annotations

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.access import handle_signer
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.base.access_config import AccessControlSection
from strata_broker.metadata.metadata import MetadataView
from strata_metadata.rows import ROW_FORMAT
from strata_mq.requests import BadHandleError, PendingHandle, ReceiptHandle
from strata_testing import ManualClock

HANDLE = ReceiptHandle(1, 2, 3, 4, 5, 6, 7, 8)
DELAY_MS, UNSIGNED_MS = 60_000, 3_600_000


class Cluster:
    """The rows that a signer sees, and its time."""

    def __init__(self, mode: str = "on") -> None:
        self.clock = ManualClock()
        self.view = MetadataView()
        self.config = AccessControlSection.model_validate({"mode": mode})
        self.signer = self.other()
        self.put(meta_pb2.Change(node=self.broker("broker-a")))

    def other(self) -> HandleSigner:
        """Another broker that has the same rows."""
        return HandleSigner(self.view, self.config, self.clock)

    def broker(self, node_id: str, row_format: int = ROW_FORMAT) -> meta_pb2.Node:
        return meta_pb2.Node(node_id=node_id, kind=meta_pb2.NODE_KIND_BROKER, row_format=row_format)

    def put(self, *changes: meta_pb2.Change) -> None:
        self.view.apply(meta_pb2.WatchResponse(revision=self.view.revision + 1, changes=changes))

    def rotate(self, key_id: int) -> None:
        """Make a key, as the nameserver does: the third one from the end goes."""
        key = meta_pb2.ClusterKey(
            key_id=key_id, secret=bytes([key_id]) * 32, created_at_ms=self.clock.wall_ms()
        )
        self.put(meta_pb2.Change(cluster_key=key))
        if key_id > 2:
            old = meta_pb2.ClusterKey(key_id=key_id - 2)
            self.put(meta_pb2.Change(deleted=True, cluster_key=old))

    def wait_ms(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    def reads(self, text: str) -> bool:
        """Whether a receipt handle is good."""
        return self.signer.read_receipts((text,)) == [HANDLE]


def test_handles_are_signed_once_every_broker_can_know_the_key() -> None:
    """A new key is read at once and signs a minute later."""
    cluster = Cluster()
    unsigned = cluster.signer.receipt(HANDLE)
    assert len(unsigned) == 60
    assert cluster.reads(unsigned)
    cluster.rotate(1)
    assert len(cluster.signer.receipt(HANDLE)) == 60
    cluster.wait_ms(DELAY_MS)
    signed = cluster.signer.receipt(HANDLE)
    assert len(signed) == 68
    assert cluster.reads(signed)
    cluster.rotate(2)
    assert cluster.signer.keys().signing_key_id == 1
    cluster.wait_ms(DELAY_MS)
    assert cluster.signer.keys().signing_key_id == 2
    assert cluster.reads(signed)
    cluster.rotate(3)
    assert not cluster.reads(signed)
    assert cluster.signer.keys().signing_key_id == 2


def test_two_rotations_in_a_row_leave_a_key_that_signs() -> None:
    """The older of the two is the one that others know."""
    cluster = Cluster()
    for key_id in (1, 2, 3):
        cluster.rotate(key_id)
    assert cluster.signer.keys().signing_key_id == 2


def test_unsigned_handles_end_some_time_after_the_first_key() -> None:
    """They were given before it; an hour later nobody should have one."""
    cluster = Cluster()
    unsigned = cluster.signer.receipt(HANDLE)
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS + UNSIGNED_MS - 1)
    assert cluster.reads(unsigned)
    cluster.wait_ms(1)
    assert not cluster.reads(unsigned)
    cluster.rotate(2)
    cluster.rotate(3)
    assert not cluster.reads(unsigned)
    fresh = cluster.other()
    assert fresh.read_receipts((unsigned, unsigned)) == [None, None]


def test_without_access_control_unsigned_handles_stay_good() -> None:
    """Anybody may do anything there; what is given is signed all the same."""
    cluster = Cluster("off")
    unsigned = cluster.signer.receipt(HANDLE)
    cluster.rotate(1)
    cluster.wait_ms(10 * UNSIGNED_MS)
    assert cluster.reads(unsigned)
    signed = cluster.signer.receipt(HANDLE)
    assert len(signed) == 68
    forged = signed[:-1] + ("A" if signed[-1] != "A" else "B")
    assert not cluster.reads(forged)


def test_nothing_is_signed_while_a_broker_cannot_read_it() -> None:
    """A broker of an older version would call every handle invalid."""
    cluster = Cluster()
    cluster.put(meta_pb2.Change(node=cluster.broker("broker-b", row_format=0)))
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS + 2 * UNSIGNED_MS)
    unsigned = cluster.signer.receipt(HANDLE)
    assert len(unsigned) == 60
    assert cluster.reads(unsigned)
    cluster.put(meta_pb2.Change(node=cluster.broker("broker-b")))
    assert len(cluster.signer.receipt(HANDLE)) == 68
    assert cluster.reads(unsigned)
    cluster.wait_ms(UNSIGNED_MS)
    assert not cluster.reads(unsigned)


def test_an_old_broker_that_is_down_does_not_count() -> None:
    """It comes back with a newer version, or is not there."""
    cluster = Cluster()
    old = cluster.broker("broker-b", row_format=0)
    old.state = meta_pb2.NODE_STATE_DOWN
    cluster.put(meta_pb2.Change(node=old))
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS)
    assert cluster.signer.keys().signing_key_id == 1


def test_transaction_ids_are_signed_alike() -> None:
    """Any broker with the rows reads them."""
    cluster = Cluster()
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS)
    handle = PendingHandle(1, 2, "01" + "0" * 32)
    assert cluster.other().read_pending(cluster.signer.pending(handle)) == handle


def test_a_mark_stands_for_a_lease_and_for_no_other() -> None:
    """Brokers know the marks of one another until their key is gone, and no small number is one."""
    cluster = Cluster()
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS + UNSIGNED_MS)
    mark, other = cluster.signer.lease_mark(HANDLE), cluster.other()
    assert 1_000 <= mark < 1 << 31
    assert other.is_lease_mark(HANDLE, mark)
    # It says nothing of the lease's number, which batch acks do not have.
    assert other.is_lease_mark(HANDLE._replace(lease_number=0, generation=0), mark)
    for wrong in (
        HANDLE._replace(offset=6),
        HANDLE._replace(queue=5),
        HANDLE._replace(topic_id=4),
        HANDLE._replace(consumer_group_id=3),
        HANDLE._replace(visible_at_ms=9),
    ):
        assert not other.is_lease_mark(wrong, mark)
    assert not any(other.is_lease_mark(HANDLE, number) for number in (0, 1, 999, mark - 1))
    for key_id in (2, 3):
        cluster.rotate(key_id)
        assert other.is_lease_mark(HANDLE, mark) == (key_id == 2)
        cluster.wait_ms(DELAY_MS)


def test_a_checksum_is_a_mark_while_handles_need_no_signature() -> None:
    """Anybody could compute it: it is refused once handles must be signed."""
    cluster = Cluster()
    unsigned = cluster.signer.lease_mark(HANDLE)
    assert cluster.signer.is_lease_mark(HANDLE, unsigned)
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS)
    assert cluster.signer.is_lease_mark(HANDLE, unsigned)
    cluster.wait_ms(UNSIGNED_MS)
    assert not cluster.signer.is_lease_mark(HANDLE, unsigned)


def test_a_handle_that_was_given_here_is_good_as_long_as_elsewhere() -> None:
    """The signer forgets its own handles with the keys that they were made with."""
    cluster = Cluster()
    cluster.rotate(1)
    cluster.wait_ms(DELAY_MS)
    pending = PendingHandle(1, 2, "01ABC")
    text = cluster.signer.pending(pending)
    assert cluster.signer.read_pending(text) is pending
    assert cluster.other().read_pending(text) == pending
    cluster.rotate(2)
    cluster.wait_ms(DELAY_MS)
    assert cluster.signer.read_pending(text) == pending
    cluster.rotate(3)
    for signer in (cluster.signer, cluster.other()):
        with pytest.raises(BadHandleError):
            signer.read_pending(text)


def test_a_signer_remembers_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what it forgot as others do."""
    monkeypatch.setattr(handle_signer, "_GIVEN_MAX", 10)
    signer = Cluster().signer
    handles = [PendingHandle(1, 2, f"01{number}") for number in range(100)]
    texts = [signer.pending(handle) for handle in handles]
    assert [signer.read_pending(text) for text in texts] == handles
    remembered = [
        signer.read_pending(text) is handle for text, handle in zip(texts, handles, strict=True)
    ]
    assert 10 <= sum(remembered) <= 20
    assert remembered[-10:] == [True] * 10
