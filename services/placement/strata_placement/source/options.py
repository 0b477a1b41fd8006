"""Options of the data source, checked where they are given. Names are not case sensitive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"


class OptionError(ValueError):
    """An option that is missing, unknown or has a bad value."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a read or a write.

    Attributes:
        endpoints: host:port of brokers; each task takes one of them.
        topic: name of the topic.
        namespace: its namespace; "": the default one.
        queues: only these; None: all.
        tag: only messages with one of these tags, "a || b"; "": all.
        begin_ms: only messages stored at or after this; None: no such limit.
        end_ms: only messages stored before this, batches only; None: no such limit.
        starting: where a new stream begins, if `begin_ms` does not say it.
        messages_per_partition: offsets that one task reads; longer spans are divided.
        max_messages_per_trigger: offsets of one micro-batch; 0: all there are.
        fail_on_data_loss: end with an error when messages were trimmed before they were read; else
            go on behind them.
        timeout_ms: patience with brokers that do not answer, per call and its repeats.
        batch_messages: messages of one send.
        batch_bytes: their bodies together, except that one always goes.
        ca_file: certificates (PEM) by which brokers are known; "": no TLS.
        access_key, secret_key, secret_key_file: keys of the user who calls brokers; "": those of
            the environment of each task, if there are any.
        tier: URL of the object store to read from, without brokers; "": brokers are asked.
        tier_home: id of the cluster, where the store holds several.
    """

    endpoints: tuple[str, ...]
    topic: str
    namespace: str = ""
    queues: frozenset[int] | None = None
    tag: str = ""
    begin_ms: int | None = None
    end_ms: int | None = None
    starting: Literal["earliest", "latest"] = EARLIEST
    messages_per_partition: int = 250_000
    max_messages_per_trigger: int = 0
    fail_on_data_loss: bool = True
    timeout_ms: int = 60_000
    batch_messages: int = 128
    batch_bytes: int = 1 << 20
    ca_file: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    secret_key_file: str = ""
    tier: str = ""
    tier_home: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options; `path` (the argument of `load`) names the topic, too.

        Raises:
            OptionError: see there.
        """
        options = {name.lower(): value for name, value in given.items()}
        topic = options.pop("topic", "") or options.pop("path", "")
        options.pop("path", None)
        endpoints = tuple(
            part.strip() for part in options.pop("endpoint", "").split(",") if part.strip()
        )
        if not topic or not (endpoints or options.get("tier")):
            raise OptionError(
                "the options topic and endpoint (host:port of brokers), or tier (URL of an object "
                "store), are needed"
            )
        values: dict[str, object] = {}
        for name, text in options.items():
            if name in _OF_SPARK:
                continue
            if name not in _PARSERS:
                known = ", ".join(["endpoint", "topic", *_PARSERS])
                raise OptionError(f"unknown option {name!r}; there are {known}")
            attribute, parse = _PARSERS[name]
            try:
                values[attribute] = parse(text)
            except ValueError as error:
                raise OptionError(f"option {name}: {error}") from error
        return cls(endpoints, topic, **values)  # type: ignore[arg-type]


def _number(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(f"{value} is negative")
    return value


def _positive(text: str) -> int:
    value = _number(text)
    if not value:
        raise ValueError("0 is too small")
    return value


def _queues(text: str) -> frozenset[int]:
    return frozenset(_number(part) for part in text.split(","))


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _starting(text: str) -> str:
    if text not in (EARLIEST, LATEST):
        raise ValueError(f"{text!r} is neither {EARLIEST} nor {LATEST}")
    return text


# Options that are for Spark itself in the same call.
_OF_SPARK = frozenset(("checkpointlocation", "queryname", "outputmode"))

_PARSERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "namespace": ("namespace", str),
    "queues": ("queues", _queues),
    "tag": ("tag", str),
    "beginms": ("begin_ms", _number),
    "endms": ("end_ms", _number),
    "starting": ("starting", _starting),
    "messagesperpartition": ("messages_per_partition", _positive),
    "maxmessagespertrigger": ("max_messages_per_trigger", _number),
    "failondataloss": ("fail_on_data_loss", _flag),
    "timeoutms": ("timeout_ms", _positive),
    "batchmessages": ("batch_messages", _positive),
    "batchbytes": ("batch_bytes", _positive),
    "cafile": ("ca_file", str),
    "accesskey": ("access_key", str),
    "secretkey": ("secret_key", str),
    "secretkeyfile": ("secret_key_file", str),
    "tier": ("tier", str),
    "tierhome": ("tier_home", str),
}
