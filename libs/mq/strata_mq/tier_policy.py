"""Policy of a topic: when its messages are read from the tier, and how long the log keeps them.

A topic's attributes set it. The policy does not know where the tier is, nor whether it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

LEVEL_ATTRIBUTE = "tiered_storage_level"
LOCAL_RETENTION_ATTRIBUTE = "local_retention_ms"

# The same attribute as clients of other implementations write it.
_LEVEL_ALIASES = (LEVEL_ATTRIBUTE, "tieredStorageLevel")


class TierLevel(StrEnum):
    """`tiered_storage_level` of a topic.

    On every level, a message that only the log or only the tier has is read from there.
    """

    # Nothing of the topic is uploaded.
    DISABLE = "DISABLE"
    # From the tier what the log has no more.
    NOT_IN_DISK = "NOT_IN_DISK"
    # From the tier what is there and not in memory.
    NOT_IN_MEM = "NOT_IN_MEM"
    # From the tier what is there.
    FORCE = "FORCE"


class TierPolicy(NamedTuple):
    """How a topic uses the tier; None: as the storage node is told.

    Attributes:
        level: when it is read.
        local_retention_ms: for how long the log keeps what the tier has.
        namespace: whose topic it is; a namespace may have a place of its own in the tier.
    """

    level: TierLevel | None = None
    local_retention_ms: int | None = None
    namespace: str = ""


DISABLED = TierPolicy(TierLevel.DISABLE)


def parse_level(text: str) -> TierLevel:
    """Return the level of a name, in any case.

    Raises:
        ValueError: there is none of this name.
    """
    try:
        return TierLevel(text.strip().upper())
    except ValueError:
        names = ", ".join(TierLevel)
        raise ValueError(f"tiered_storage_level {text!r} is none of {names}") from None


def policy_of(attributes: Mapping[str, str]) -> TierPolicy:
    """Return what a topic's attributes say.

    Raises:
        ValueError: an unknown level, or a local retention that is no number.
    """
    texts = [attributes[name] for name in _LEVEL_ALIASES if name in attributes]
    level = parse_level(texts[0]) if texts else None
    local_text = attributes.get(LOCAL_RETENTION_ATTRIBUTE)
    if local_text is None:
        return TierPolicy(level)
    if not local_text.isdecimal():
        raise ValueError(f"{LOCAL_RETENTION_ATTRIBUTE} {local_text!r} is no number of ms")
    return TierPolicy(level, int(local_text))


def stored_policy(attributes: Mapping[str, str]) -> TierPolicy:
    """Return what the attributes of a stored topic say.

    One from before they were looked at may say anything: then nothing is uploaded.
    """
    try:
        return policy_of(attributes)
    except ValueError:
        return DISABLED


def normalised_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes with the level under its one name and in capitals.

    Raises:
        ValueError: see `policy_of`.
    """
    rest = {key: value for key, value in attributes.items() if key not in _LEVEL_ALIASES}
    level = policy_of(attributes).level
    if level is not None:
        rest[LEVEL_ATTRIBUTE] = level
    return rest
