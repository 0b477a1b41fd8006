"""The commands of `strata user`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.access_views import policy_view, user_view
from strata_cli.client import connect, secret_key_of
from strata_cli.confirming import Yes, confirm
from strata_cli.options import COMMON, Common, Unused, milliseconds
from strata_cli.output import show
from strata_cli.views import View

Name = Annotated[str, Parameter(help="Name of the user, which is its access key.")]

PAGE_SIZE = 1_000

app = App(name="user", help="Users, their keys and temporary keys.")


@app.command
def create(
    name: Name,
    /,
    *,
    admin: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Create a user and print its keys: they are shown this once.

    --secret-key-file names a file with the secret key of the new user; without it a secret key is
    made. The keys to sign with are then in the environment or in a profile.

    For instance: strata user create shop -o json

    Args:
        admin: The user may do everything.
    """
    secret_key, common = _new_secret(common)
    request = admin_pb2.CreateUserRequest(name=name, admin=admin, secret_key=secret_key)
    with connect(common) as client:
        response = client.call(client.admin.CreateUser, request)
    view = {"access_key": response.user.name, "secret_key": response.secret_key}
    show(view | {"admin": response.user.admin}, common)


@app.command(name="list")
def list_(*, common: Common = COMMON) -> None:
    """List users.

    For instance: strata user list -o json
    """
    request = admin_pb2.ListUsersRequest(page_size=PAGE_SIZE)
    users: list[View] = []
    with connect(common) as client:
        while True:
            response = client.call(client.admin.ListUsers, request)
            users.extend(map(user_view, response.users))
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
    show({"users": users}, common, rows="users")


@app.command(name="show")
def show_(name: Name, /, *, common: Common = COMMON) -> None:
    """Show a user and its policies.

    For instance: strata user show shop
    """
    with connect(common) as client:
        response = client.call(client.admin.GetUser, admin_pb2.GetUserRequest(name=name))
    view = user_view(response.user) | {"policies": list(map(policy_view, response.policies))}
    show(view, common, rows="policies")


@app.command
def delete(name: Name, /, *, yes: Yes = False, common: Common = COMMON) -> None:
    """Delete a user with its policies; the last enabled admin stays.

    For instance: strata user delete shop --yes
    """
    confirm(f"User {name} and its policies are deleted", yes=yes)
    with connect(common) as client:
        client.call(client.admin.DeleteUser, admin_pb2.DeleteUserRequest(name=name))
    show({"deleted": name}, common)


@app.command
def rotate_key(
    name: Name,
    /,
    *,
    previous_valid: str | None = None,
    common: Common = COMMON,
) -> None:
    """Give a user a new secret key and print it: it is shown this once.

    The former secret key stays valid for a while, so that clients can change over one by one.
    --secret-key-file names a file with the new secret key, as for `strata user create`.

    For instance: strata user rotate-key shop --previous-valid 1h -o json

    Args:
        previous_valid: How long the former secret key stays valid; 0s: not at all; default: the
            broker's access_control.previous_key_valid_ms.
    """
    secret_key, common = _new_secret(common)
    request = admin_pb2.RotateUserKeyRequest(name=name, secret_key=secret_key)
    if previous_valid is not None:
        request.previous_valid_ms = milliseconds(previous_valid)
    with connect(common) as client:
        response = client.call(client.admin.RotateUserKey, request)
    view = {"access_key": response.user.name, "secret_key": response.secret_key}
    valid_until = {"previous_valid_until_ms": response.user.previous_valid_until_ms}
    show(view | valid_until, common)


@app.command
def session(name: Name, /, *, duration: str | None = None, common: Common = COMMON) -> None:
    """Make temporary keys of a user and print them: they are shown this once.

    For instance: strata user session shop --duration 15m -o json

    Args:
        duration: How long they are valid; default: the broker's access_control.default_session_ms.
    """
    request = admin_pb2.CreateUserSessionRequest(name=name)
    if duration is not None:
        # Less than a millisecond would mean the default.
        request.duration_ms = max(1, milliseconds(duration))
    with connect(common) as client:
        made = client.call(client.admin.CreateUserSession, request)
    view = {
        "access_key": made.access_key,
        "secret_key": made.secret_key,
        "session_token": made.session_token,
        "ends_at_ms": made.ends_at_ms,
    }
    show(view, common)


@app.command
def enable(name: Name, /, *, common: Common = COMMON) -> None:
    """Let a disabled user sign calls again.

    For instance: strata user enable shop
    """
    _set_disabled(name, common, disabled=False)


@app.command
def disable(name: Name, /, *, common: Common = COMMON) -> None:
    """Refuse all calls of a user; its policies stay. The last enabled admin stays enabled.

    For instance: strata user disable shop
    """
    _set_disabled(name, common, disabled=True)


@app.command
def recover(
    *,
    data_dir: Path,
    name: str = "admin",
    common: Unused = COMMON,
) -> None:
    """Replace the lost key of an admin, on the machine of a stopped server.

    The server must be a standalone node or a nameserver. The new keys are valid when it has
    started again and a nameserver leads. A user that does not exist is created; it becomes an
    enabled admin.

    For instance: strata user recover --data-dir /var/lib/strata

    Args:
        data_dir: Data folder of the server.
        name: Name of the admin.
    """
    from strata_cli.processes.recovering import leave_order

    keys = leave_order(data_dir, name)
    view = {"access_key": keys.access_key, "secret_key": keys.secret_key}
    show(view | {"data_dir": str(data_dir)}, common)


def _set_disabled(name: str, common: Common, *, disabled: bool) -> None:
    request = admin_pb2.UpdateUserRequest(
        user=admin_pb2.User(name=name, disabled=disabled), update_mask=["disabled"]
    )
    with connect(common) as client:
        response = client.call(client.admin.UpdateUser, request)
    show(user_view(response.user), common)


def _new_secret(common: Common) -> tuple[str, Common]:
    """Return the secret key for a user (empty: it is to be made), and the options to connect with.

    The file is the user's, unless it holds the only secret that the access key could belong to.
    """
    if not common.secret_key_file or (common.access_key and not common.secret_key):
        return "", common
    return secret_key_of(common), replace(common, secret_key_file="")
