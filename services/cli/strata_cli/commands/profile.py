"""The commands of `strata profile`; `name` and `common` are described by their types."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from strata_cli.confirming import Yes, confirm
from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.profile_file import put_profile, read_profiles, remove_profile
from strata_cli.profiles import profiles_file
from strata_cli.views import View

Name = Annotated[str, Parameter(help="Name of the profile.")]

_KEYS = ("endpoint", "namespace", "tls", "ca", "access_key", "secret_key_file")

app = App(name="profile", help="Connections under a name; no server is asked.")


@app.command(name=["list", "ls"])
def list_(*, common: Common = COMMON) -> None:
    """List the profiles of this user.

    For instance: strata profile list
    """
    path = profiles_file(os.environ)
    profiles = [_view(name, values) for name, values in read_profiles(path).items()]
    show({"file": str(path), "profiles": profiles}, common, rows="profiles")


@app.command(name="set")
def set_(name: Name, /, *, common: Common = COMMON) -> None:
    """Keep the connection options of this command as a profile; --profile NAME uses it.

    The secret key is not kept, only the name of its file (--secret-key-file).

    For instance: strata profile set production --endpoint broker:8081 --ca ca.crt
    """
    if common.secret_key or common.session_token:
        raise UsageError("secrets are not kept in a profile: give --secret-key-file")
    values: dict[str, str | bool] = {"endpoint": common.endpoint}
    if common.namespace:
        values["namespace"] = common.namespace
    if common.tls:
        values["tls"] = True
    if common.ca:
        values["ca"] = str(Path(common.ca).absolute())
    if common.access_key:
        values["access_key"] = common.access_key
    if common.secret_key_file:
        values["secret_key_file"] = str(Path(common.secret_key_file).absolute())
    path = profiles_file(os.environ)
    put_profile(path, name, values)
    show({"file": str(path), **_view(name, values)}, common)


@app.command(name="show")
def show_(name: Name, /, *, common: Common = COMMON) -> None:
    """Show a profile.

    For instance: strata profile show production -o json
    """
    path = profiles_file(os.environ)
    profiles = read_profiles(path)
    if name not in profiles:
        raise CliError(f"{path} has no profile {name}", "not_found")
    show(_view(name, profiles[name]), common)


@app.command
def delete(name: Name, /, *, yes: Yes = False, common: Common = COMMON) -> None:
    """Delete a profile; files that it names stay.

    For instance: strata profile delete production --yes
    """
    path = profiles_file(os.environ)
    confirm(f"Profile {name} is deleted from {path}", yes=yes)
    remove_profile(path, name)
    show({"deleted": name}, common)


def _view(name: str, values: dict[str, str | bool]) -> View:
    return {"name": name} | {key: values.get(key, False if key == "tls" else "") for key in _KEYS}
