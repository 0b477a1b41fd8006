"""All rules by the path of their RPC: an RPC that is not here cannot be served."""

from __future__ import annotations

from functools import cache

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from strata_broker.access.rocketmq_rules import MESSAGING_RULES, ROCKETMQ_ADMIN_RULES
from strata_broker.access.rules import Rule, Rules
from strata_broker.access.strata_rules import (
    ADMIN_RULES,
    CONTAINER_RULES,
    KV_RULES,
    PEER_RULES,
    USER_RULES,
)

_ROCKETMQ = "/apache.rocketmq.v2."


class Ruled:
    """An RPC with its rule.

    Attributes:
        path: `/package.Service/Rpc`.
        rule: its rule.
        request_type, response_type: its messages.
        speaks_rocketmq: whether refusals are a Status in the response, not a gRPC status.
    """

    __slots__ = ("path", "request_type", "response_type", "rule", "speaks_rocketmq")

    def __init__(self, path: str, rpc: MethodDescriptor, rule: Rule) -> None:
        self.path = path
        self.rule = rule
        self.request_type: type[Message] = message_factory.GetMessageClass(rpc.input_type)
        self.response_type: type[Message] = message_factory.GetMessageClass(rpc.output_type)
        self.speaks_rocketmq = path.startswith(_ROCKETMQ)


RULES_OF: dict[str, Rules] = {
    "apache.rocketmq.v2.MessagingService": MESSAGING_RULES,
    "apache.rocketmq.v2.Admin": ROCKETMQ_ADMIN_RULES,
    "strata.admin.v1.AdminService": {**ADMIN_RULES, **USER_RULES},
    "strata.admin.v1.ContainerService": CONTAINER_RULES,
    "strata.kv.v1.KvService": KV_RULES,
    "strata.broker.v1.PeerService": PEER_RULES,
}
"""Rules of each service by the names of its RPCs."""


@cache
def ruled_at(path: str) -> Ruled:
    """Return the RPC at a path; its service's module is imported, since somebody serves it.

    Raises:
        TypeError: it has no rule.
    """
    service, _, name = path.removeprefix("/").rpartition("/")
    rule = RULES_OF.get(service, {}).get(name)
    if rule is None:
        raise TypeError(f"{path} has no rule of access control: nobody could call it")
    descriptor = descriptor_pool.Default().FindServiceByName(service)
    return Ruled(path, descriptor.methods_by_name[name], rule)


def all_paths() -> list[str]:
    """Return the paths of all RPCs that have a rule."""
    return [f"/{service}/{name}" for service, rules in RULES_OF.items() for name in rules]
