"""Before an installation and each upgrade: makes the secrets that are missing, renews certificates.

The keys of the first admin, the cluster's own authority, and a certificate for each role. A secret
that exists is kept; a certificate is issued again when less than a third of its days is left, or
when its hosts have changed. Certificates of other sources (cert-manager, an own secret) are not in
the plan.

CHART_PLAN: JSON of {"admin": NAME or "", "authority": NAME, "days": N, "certificates":
[{"secret": NAME, "role": ROLE, "hosts": [HOST, ...]}]}.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import kube

AUTHORITY_DAYS = 3_650


def main() -> None:
    """Carry out the plan."""
    plan = json.loads(os.environ["CHART_PLAN"])
    if plan["admin"] and read(plan["admin"]) is None:
        keys = {"access_key": "admin", "secret_key": secrets.token_urlsafe(32)}
        write(plan["admin"], {name: value.encode() for name, value in keys.items()})
    if plan["certificates"]:
        with tempfile.TemporaryDirectory() as folder:
            authority = authority_in(Path(folder) / "ca", plan["authority"])
            for number, wanted in enumerate(plan["certificates"]):
                renew(authority, Path(folder) / str(number), wanted, plan["days"])


def authority_in(folder: Path, secret: str) -> Path:
    """Return a folder with the authority; it is made once."""
    found = read(secret)
    if found is None:
        run("cert", "init", "--out", str(folder), "--days", str(AUTHORITY_DAYS))
        write(secret, {name: (folder / name).read_bytes() for name in ("ca.crt", "ca.key")})
        return folder
    folder.mkdir()
    for name in ("ca.crt", "ca.key"):
        (folder / name).write_bytes(found[name])
        (folder / name).chmod(0o600)
    return folder


def renew(authority: Path, folder: Path, wanted: dict[str, Any], days: int) -> None:
    """Issue a certificate if it is missing, ends soon, or names other hosts."""
    found = read(wanted["secret"])
    folder.mkdir()
    if found is not None and is_good(folder, found, wanted, days):
        print(f"secret {wanted['secret']}: kept")
        return
    hosts = [f"--host={host}" for host in wanted["hosts"]]
    role = ("--role", wanted["role"], "--out", str(folder), "--days", str(days))
    run("cert", "issue", "--ca", str(authority), *role, *hosts)
    files = {name: (folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}
    if found is not None and "ca.crt" in found:
        # Authorities that somebody added stay accepted.
        files["ca.crt"] = joined(files["ca.crt"], found["ca.crt"])
    write(wanted["secret"], files, kind="kubernetes.io/tls")


def is_good(folder: Path, found: dict[str, bytes], wanted: dict[str, Any], days: int) -> bool:
    """Whether a certificate can stay."""
    file = folder / "found.crt"
    file.write_bytes(found.get("tls.crt", b""))
    try:
        facts = json.loads(run("cert", "show", str(file), "-o", "json"))
    except subprocess.CalledProcessError:
        return False
    same = facts["role"] == wanted["role"] and {*facts["hosts"]} == {*wanted["hosts"]}
    return same and bool(facts["days_left"] > days / 3)


def joined(first: bytes, second: bytes) -> bytes:
    """Return the certificates of both files, each once."""
    end = b"-----END CERTIFICATE-----"
    parts = [part.strip() for part in (first + b"\n" + second).split(end) if part.strip()]
    return b"".join(part + b"\n" + end + b"\n" for part in dict.fromkeys(parts))


def run(*arguments: str) -> str:
    """Return the output of a command of `strata`."""
    done = subprocess.run(["strata", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def read(name: str) -> dict[str, bytes] | None:
    """Return the content of a secret; None: there is none."""
    found = kube.get(f"{base()}/{name}")
    if found is None:
        return None
    return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}


def write(name: str, files: dict[str, bytes], *, kind: str = "Opaque") -> None:
    """Create a secret, or replace what it holds."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"name": name, "labels": json.loads(os.environ["CHART_LABELS"])},
        "data": {key: base64.b64encode(value).decode() for key, value in files.items()},
    }
    if read(name) is None:
        kube.call("POST", base(), secret)
        print(f"secret {name}: made")
    else:
        patch = {"data": secret["data"]}
        kube.call("PATCH", f"{base()}/{name}", patch, content_type="application/merge-patch+json")
        print(f"secret {name}: renewed")


def base() -> str:
    """Return the path of the namespace's secrets."""
    return f"/api/v1/namespaces/{os.environ['CHART_NAMESPACE']}/secrets"


if __name__ == "__main__":
    main()
