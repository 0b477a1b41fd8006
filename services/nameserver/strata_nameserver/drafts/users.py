"""Changes of users: decided by the metadata leader, in one draft each.

A user's name is its access key. The last admin that is enabled stays: it can be neither deleted,
disabled nor demoted. A user's policies go with it, in the same change. Texts never hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.topics import check_mask, check_revision
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import user_key

NewSecret = Callable[[], str]
"""Draws a secret key."""

MAX_PREVIOUS_VALID_MS = 30 * 86_400_000

_NAME = re.compile(r"[a-zA-Z0-9_.@-]{3,64}")
_SECRET = re.compile(r"[!-~]{8,128}")
_MUTABLE = ("admin", "disabled", "secret_key")


def create_user(
    draft: Draft, wanted: meta_pb2.User, config: NameserverConfig, new_secret: NewSecret
) -> meta_pb2.User:
    """Make a user and return its row, with its secret key.

    Raises:
        MetaRefused: INVALID, ALREADY_EXISTS or LIMIT_REACHED.
    """
    user = meta_pb2.User(
        name=wanted.name, secret_key=wanted.secret_key or new_secret(), admin=wanted.admin
    )
    check_keys(user.name, user.secret_key)
    there = draft.get(user_key(user.name))
    if there is not None:
        known = meta_pb2.User.FromString(there)
        if wanted.secret_key == known.secret_key and (known.admin, known.disabled) == (
            user.admin,
            False,
        ):
            # Nobody else knows the key: the answer of a first try was lost.
            return known
        raise MetaRefused(meta_pb2.META_OUTCOME_ALREADY_EXISTS, f"user {user.name} exists already")
    _count_one_more(draft, config)
    return _put_new(draft, user)


def update_user(
    draft: Draft,
    wanted: meta_pb2.User,
    mask: Sequence[str],
    previous_valid_ms: int,
    new_secret: NewSecret,
) -> meta_pb2.User:
    """Change the fields that `mask` names and return the row, with its secret key.

    Args:
        draft: the change.
        wanted: name and new values; a revision other than 0 must be the row's.
        mask: of admin, disabled, secret_key.
        previous_valid_ms: how long the former secret key stays valid after a new one is set.
        new_secret: draws a secret key where the mask names it and `wanted` has none.

    Raises:
        MetaRefused: NOT_FOUND, INVALID, or CONFLICT: the row has another revision, or the user is
            the last admin.
    """
    user = stored_user(draft, wanted.name)
    check_revision("user", wanted.name, wanted.revision, user.revision)
    check_mask(mask, _MUTABLE)
    for field in mask:
        if field == "secret_key":
            _rotate(draft, user, wanted.secret_key or new_secret(), previous_valid_ms)
        else:
            setattr(user, field, getattr(wanted, field))
    if user.disabled or not user.admin:
        _check_not_last(draft, user.name)
    user.updated_at_ms = draft.now_ms
    draft.put(user)
    return user


def delete_user(draft: Draft, name: str) -> None:
    """Delete a user and its policies.

    Raises:
        MetaRefused: NOT_FOUND; CONFLICT: it is the last admin.
    """
    stored_user(draft, name)
    _check_not_last(draft, name)
    for policy_id in draft.access.policies_of(name):
        draft.delete(meta_pb2.Policy(policy_id=policy_id))
        draft.counters.policy_count -= 1
    draft.delete(meta_pb2.User(name=name))
    draft.counters.user_count -= 1


def ensure_admin(draft: Draft, name: str, secret_key: str) -> None:
    """Make a user an enabled admin with this secret key, whatever it was before.

    For the first admin, and for one whose key was lost. `max_users` is no hindrance: without this
    admin nobody could delete a user. A user that is so already leaves the draft empty.

    Raises:
        MetaRefused: INVALID.
    """
    check_keys(name, secret_key)
    stored = draft.get(user_key(name))
    user = meta_pb2.User.FromString(stored or b"")
    if stored is None:
        draft.counters.user_count += 1
        _put_new(draft, meta_pb2.User(name=name, secret_key=secret_key, admin=True))
        return
    if user.admin and not user.disabled and user.secret_key == secret_key:
        return
    user.admin, user.disabled, user.secret_key = True, False, secret_key
    # A finder of the lost key must not sign with it any more.
    user.ClearField("previous_secret_key")
    user.ClearField("previous_valid_until_ms")
    user.updated_at_ms = draft.now_ms
    draft.put(user)


def stored_user(draft: Draft, name: str) -> meta_pb2.User:
    """Return a user's row.

    Raises:
        MetaRefused: NOT_FOUND.
    """
    value = draft.get(user_key(name))
    if value is None:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"user {name} does not exist")
    return meta_pb2.User.FromString(value)


def check_keys(name: str, secret_key: str) -> None:
    """Raise INVALID unless both keys can be used in a signature."""
    if not _NAME.fullmatch(name):
        raise invalid("the name of a user has 3 to 64 characters of A-Z a-z 0-9 _ . @ -")
    if not _SECRET.fullmatch(secret_key):
        raise invalid(
            f"user {name}: a secret key has 8 to 128 printable ASCII characters without spaces"
        )


def _put_new(draft: Draft, user: meta_pb2.User) -> meta_pb2.User:
    user.created_at_ms = user.updated_at_ms = draft.now_ms
    draft.put(user)
    return user


def _rotate(draft: Draft, user: meta_pb2.User, secret_key: str, previous_valid_ms: int) -> None:
    check_keys(user.name, secret_key)
    if previous_valid_ms > MAX_PREVIOUS_VALID_MS:
        raise invalid(
            f"user {user.name}: the former key would be valid for {previous_valid_ms} ms; at most "
            f"{MAX_PREVIOUS_VALID_MS} ms are allowed"
        )
    if previous_valid_ms and user.secret_key != secret_key:
        user.previous_secret_key = user.secret_key
        user.previous_valid_until_ms = draft.now_ms + previous_valid_ms
    elif not previous_valid_ms:
        user.ClearField("previous_secret_key")
        user.ClearField("previous_valid_until_ms")
    user.secret_key = secret_key


def _check_not_last(draft: Draft, name: str) -> None:
    if draft.access.is_last_admin(name):
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"user {name} is the last admin that is enabled: create another one first",
        )


def _count_one_more(draft: Draft, config: NameserverConfig) -> None:
    if draft.counters.user_count >= config.max_users:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"there are {config.max_users} users already (nameserver.max_users)",
        )
    draft.counters.user_count += 1
