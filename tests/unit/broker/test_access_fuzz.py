"""Headers and policies as nobody writes them: they are refused, never an error, never let in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.meta.v1 import meta_pb2
from strata_broker.access.authentication import Authenticator
from strata_broker.access.principals import AccessRefused
from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.audit import NoAudit
from strata_broker.metadata.metadata import MetadataView
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import Code
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_testing.broker.keys import cluster_key_row, signed, user_row

texts = st.text(st.characters(max_codepoint=0xFF), max_size=80)
GOOD = signed("ann")
pieces = st.sampled_from(
    [
        "MQv2-HMAC-SHA1 ",
        "Credential=",
        "ann",
        "/",
        ", ",
        "Signature=",
        "00",
        "=",
        GOOD["authorization"],
    ]
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "authorization": st.one_of(texts, st.lists(pieces, max_size=12).map("".join)),
        "x-mq-date-time": st.one_of(texts, st.just(GOOD["x-mq-date-time"])),
        "x-mq-session-token": texts,
        "x-mq-client-id": texts,
    },
)
actions = st.sampled_from([action for action in Action if action is not Action.ALL])


def broker(*changes: meta_pb2.Change) -> Authenticator:
    """The authenticator of a broker with these rows."""
    view = MetadataView()
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes))
    config = AccessControlSection(mode="on", max_wrong_signatures=10**9)
    return Authenticator(view, config, SystemClock(), audit=NoAudit(), metrics=Metrics.disabled())


ACCESS = broker(user_row("ann"), cluster_key_row())


@settings(max_examples=500)
@given(headers, st.one_of(texts, st.just("127.0.0.1:1")))
def test_headers_are_right_or_refused(metadata: dict[str, str], peer: str) -> None:
    """Only the very header that was signed lets in."""
    try:
        principal = ACCESS.principal_of(metadata, peer)
    except AccessRefused as refused:
        assert refused.code is Code.UNAUTHORIZED
        assert refused.text
    else:
        assert principal.user == "ann"
        assert metadata["x-mq-date-time"] == GOOD["x-mq-date-time"]
        assert not metadata.get("x-mq-session-token")


@given(
    st.lists(
        st.builds(
            meta_pb2.Policy,
            policy_id=st.integers(1, 1_000),
            user=st.just("ann"),
            resource=texts,
            actions=st.lists(texts, max_size=3),
            decision=st.sampled_from([0, 1, 2, 99]),
            sources=st.lists(texts, max_size=2),
        ),
        max_size=4,
    ),
    texts,
    actions,
)
def test_policies_that_nobody_can_read_give_no_right(
    policies: list[meta_pb2.Policy], name: str, action: Action
) -> None:
    """The nameserver refuses such rows; a broker that gets one fails safe."""
    access = broker(user_row("ann"), *(meta_pb2.Change(policy=policy) for policy in policies))
    principal = access.principal_of(signed("ann"), "127.0.0.1:1")
    assert not principal.may(ResourceKind.CLUSTER, ("", name), action)
