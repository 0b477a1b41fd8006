"""Options of several commands of `strata migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strata_cli.errors import CliError, UsageError
from strata_cli.migrate.access_rows import read_yaml
from strata_cli.migrate.connections import ClusterKeys
from strata_runtime.addresses import host_and_port

KeysFile = Annotated[
    Path | None,
    Parameter(
        name="--source-keys",
        help="File with accessKey and secretKey of a super user of RocketMQ, as its tools.yml, if "
        "access control is on there.",
    ),
]


def addresses_of(nameserver: str) -> list[str]:
    """Return the addresses in a text that separates them by semicolons.

    Raises:
        UsageError: one is no address, or there is none.
    """
    found = [each.strip() for each in nameserver.split(";") if each.strip()]
    for address in found or [nameserver]:
        try:
            host_and_port(address)
        except ValueError:
            raise UsageError(f"{address!r}: write HOST:PORT of RocketMQ's nameserver") from None
    return found


def read_source_keys(path: Path | None) -> ClusterKeys | None:
    """Return the keys in a file; None for no file.

    Raises:
        CliError: the file cannot be read.
        UsageError: a key is missing.
    """
    if path is None:
        return None
    try:
        keys = read_yaml(read_file(path))
    except UsageError as bad:
        raise UsageError(f"{path}: {bad}") from None
    access_key, secret_key = keys.get("accessKey"), keys.get("secretKey")
    if access_key is None or secret_key is None:
        raise UsageError(f"{path} needs accessKey and secretKey")
    return ClusterKeys(str(access_key), str(secret_key))


def read_file(path: Path) -> str:
    """Return the text of a file.

    Raises:
        CliError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}", "not_found") from None
