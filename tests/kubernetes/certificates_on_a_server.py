"""Certificates by a real cert-manager: the chart's objects become the secrets that pods mount.

`make test-kubernetes` runs it. The issuer of the cluster is an authority that a root signed, as
most are. The processes' own code reads the secrets and talks by them.
"""

from __future__ import annotations

import base64
import datetime
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from strata_angelia.tls import PeerFiles, PeerTls
from strata_runtime import tls
from strata_runtime.authority import facts_of
from strata_runtime.errors import ConfigError
from strata_runtime.roles import PeerRole
from tests.chart.reach import templates
from tests.kubernetes.rendered import NAMESPACE, Object, make_namespace, of_kind, rendered
from tests.kubernetes.rig.binaries import CERTIFICATES, missing_of
from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.processes import Part, wait_for
from tests.parts.required import absent

ROLES = (PeerRole.NAMESERVER, PeerRole.STORAGE, PeerRole.BROKER)
# Where issuers of the whole cluster have their secrets.
MANAGER = "cert-manager"
HOSTS = {
    PeerRole.NAMESERVER: "demo-nameserver-2.demo-nameserver.messaging.svc",
    PeerRole.STORAGE: "demo-storage-0.demo-storage.messaging.svc",
    PeerRole.BROKER: "10-0-0-7.messaging.pod",
}
SERVED = {
    "mq.example.org",
    "localhost",
    "demo-broker.messaging.svc",
    "demo-operators.messaging.svc",
}
"""Names that docs/kubernetes.md promises for the port of clients and operators."""


def authority(name: str, issuer: str, namespace: str) -> Object:
    """Return the certificate of an authority."""
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "isCA": True,
            "commonName": name,
            "secretName": name,
            "privateKey": {"algorithm": "ECDSA", "size": 256},
            "issuerRef": {"name": issuer},
        },
    }


def issuer(name: str, spec: Object, namespace: str = "") -> Object:
    """Return an issuer of a namespace, or one of the whole cluster."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    kind = "Issuer" if namespace else "ClusterIssuer"
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


@pytest.fixture(scope="module")
def manager(control: Control) -> Iterator[Part]:
    """cert-manager with the two issuers that examples/production.yaml names."""
    if reason := missing_of(CERTIFICATES):
        absent(reason)
    part = control.start_loop("certmanager")
    make_namespace(control, MANAGER)
    control.apply(
        issuer("itself", {"selfSigned": {}}, MANAGER),
        authority("root-of-all", "itself", MANAGER),
        issuer("internal", {"ca": {"secretName": "root-of-all"}}),
        issuer("itself", {"selfSigned": {}}, NAMESPACE),
        authority("root", "itself", NAMESPACE),
        issuer("root", {"ca": {"secretName": "root"}}, NAMESPACE),
        authority("signed", "root", NAMESPACE),
        issuer("signed", {"ca": {"secretName": "signed"}}, NAMESPACE),
        issuer("strata-cluster", {"ca": {"secretName": "strata-cluster"}}, NAMESPACE),
    )
    wait_for(lambda: is_ready(control, part, "signed"), "the authority is signed")
    # As docs/kubernetes.md says: the authority alone, without the root that signed it.
    data = control.get("secret", "-n", NAMESPACE, "signed")["data"]
    control.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": "strata-cluster", "namespace": NAMESPACE},
            "data": {key: data[key] for key in ("tls.crt", "tls.key")},
        }
    )
    yield part
    control.end_loop(part)


@pytest.fixture(scope="module")
def items(control: Control) -> list[Object]:
    """The objects of the example."""
    return rendered(control, example="production.yaml")


@pytest.fixture(scope="module")
def secrets(control: Control, manager: Part, items: list[Object]) -> dict[str, Object]:
    """The secrets of the release's certificates, once each is ready, by name."""
    certificates = of_kind(items, "Certificate")
    for each in certificates:
        each["metadata"]["namespace"] = NAMESPACE
    control.apply(*certificates)
    names = [each["metadata"]["name"] for each in certificates]
    wait_for(lambda: all(is_ready(control, manager, name) for name in names), f"{names} are ready")
    made = [each["spec"]["secretName"] for each in certificates]
    return {name: control.get("secret", "-n", NAMESPACE, name) for name in made}


def is_ready(control: Control, manager: Part, name: str) -> bool:
    manager.check()
    found = control.get("certificate", "-n", NAMESPACE, name)
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def put(secret: Object, folder: Path) -> Path:
    """Write a secret as a pod sees it."""
    folder.mkdir(exist_ok=True)
    for name, data in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(data))
    return folder


def loaded(secrets: dict[str, Object], role: PeerRole, folder: Path) -> PeerTls:
    """Return the certificates of a role as its process reads them."""
    found = PeerTls(PeerFiles.in_folder(put(secrets[f"demo-{role}-tls"], folder / role)), role)
    found.load()
    return found


def usages(folder: Path) -> set[x509.ObjectIdentifier]:
    """Return what the certificate of a folder may be used for."""
    certificate = tls.read_certificate(folder / "tls.crt")
    return {*certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Return the end that was called, after a handshake that both ends accepted."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname=host)
    called = server.wrap_bio(to_server, to_client, server_side=True)
    is_done = {caller: False, called: False}
    while not all(is_done.values()):
        for end in is_done:
            try:
                end.do_handshake()
                is_done[end] = True
            except ssl.SSLWantReadError:
                continue
    return called


def test_each_pod_finds_the_secrets_that_it_mounts(
    items: list[Object], secrets: dict[str, Object]
) -> None:
    """No volume names a secret, or a file in it, that cert-manager did not make."""
    mounted: set[str] = set()
    for _, spec in templates(items):
        for volume in spec["volumes"]:
            if volume["name"].endswith("tls"):
                name = volume["secret"]["secretName"]
                assert {item["key"] for item in volume["secret"].get("items", ())} <= set(
                    secrets[name]["data"]
                )
                mounted.add(name)
    assert mounted == set(secrets)
    for secret in secrets.values():
        assert secret["type"] == "kubernetes.io/tls"
        assert all(secret["data"][key] for key in ("tls.crt", "tls.key", "ca.crt"))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_its_own_certificate_and_no_other(
    secrets: dict[str, Object], role: PeerRole, tmp_path: Path
) -> None:
    """The process takes it; a process of another role does not."""
    found = loaded(secrets, role, tmp_path)
    assert found.credentials.facts.role is role
    both = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert usages(tmp_path / role) == both
    for other in ROLES:
        if other is not role:
            with pytest.raises(ConfigError, match="this process is"):
                PeerTls(found.files, other).load()


def test_pods_talk_under_the_names_that_they_advertise(
    secrets: dict[str, Object], tmp_path: Path
) -> None:
    """Each calls each: the authority, the usages and the name of the pod called are accepted."""
    ends = {role: loaded(secrets, role, tmp_path).credentials for role in ROLES}
    for caller in ROLES:
        for called in ROLES:
            shake(ends[called].server, ends[caller].client, HOSTS[called])
            with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
                shake(ends[called].server, ends[caller].client, f"x.{HOSTS[called]}")


def test_the_port_for_clients_has_the_names_that_are_promised(
    secrets: dict[str, Object], tmp_path: Path
) -> None:
    """A client that trusts `ca.crt` of the secret reaches it by each; it names no role."""
    folder = put(secrets["demo-edge-tls"], tmp_path / "edge")
    pair = tls.own(folder / "tls.crt", folder / "tls.key")
    facts = facts_of(tls.read_certificate(pair.certificate_file))
    assert set(facts.hosts) >= SERVED
    assert facts.role is None
    assert usages(folder) == {ExtendedKeyUsageOID.SERVER_AUTH}
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate_file, pair.key_file)
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    for host in SERVED:
        shake(server, client, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "demo-storage.messaging.svc")


def test_the_certificate_for_clients_opens_nothing_inside(
    secrets: dict[str, Object], tmp_path: Path
) -> None:
    """It is of another issuer: a storage node does not take it from a caller."""
    folder = put(secrets["demo-edge-tls"], tmp_path / "edge")
    storage = loaded(secrets, PeerRole.STORAGE, tmp_path)
    client = ssl.create_default_context(cafile=str(storage.files.ca_file))
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(storage.credentials.server, client, HOSTS[PeerRole.STORAGE])


@pytest.mark.parametrize(("name", "is_good"), [("root", True), ("signed", False)])
def test_the_authority_itself_is_in_the_secret(
    control: Control,
    manager: Part,
    items: list[Object],
    tmp_path: Path,
    name: str,
    is_good: bool,
) -> None:
    """One that signed itself is; of one that a root signed cert-manager may write the root."""
    [own] = [
        each for each in of_kind(items, "Certificate") if each["metadata"]["name"] == "demo-storage"
    ]
    secret = f"storage-by-{name}"
    reference = {"name": name, "kind": "Issuer"}
    spec = own["spec"] | {"secretName": secret, "issuerRef": reference}
    control.apply(own | {"metadata": {"name": secret, "namespace": NAMESPACE}, "spec": spec})
    wait_for(lambda: is_ready(control, manager, secret), f"{secret} is ready")
    folder = put(control.get("secret", "-n", NAMESPACE, secret), tmp_path / name)
    found = PeerTls(PeerFiles.in_folder(folder), PeerRole.STORAGE)
    if is_good:
        ends = found.load()
        shake(ends.server, ends.client, HOSTS[PeerRole.STORAGE])
        return
    with pytest.raises(ConfigError, match="is not signed by an authority in"):
        found.load()


def test_a_renewed_certificate_is_taken(
    control: Control, manager: Part, secrets: dict[str, Object], tmp_path: Path
) -> None:
    """As cert-manager does before the end: a new key in the same secret, and pods still talk."""
    before = loaded(secrets, PeerRole.BROKER, tmp_path)
    first = before.credentials
    name = ("-n", NAMESPACE, "demo-broker")
    order = {
        "type": "Issuing",
        "status": "True",
        "reason": "ManuallyTriggered",
        "message": "a test renews it",
        "lastTransitionTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    change = [{"op": "add", "path": "/status/conditions/-", "value": order}]
    control.kubectl(
        *("patch", "certificate", *name, "--subresource=status"),
        *("--type=json", "-p", json.dumps(change)),
    )
    held = secrets["demo-broker-tls"]["data"]

    def is_new() -> bool:
        manager.check()
        data = control.get("secret", "-n", NAMESPACE, "demo-broker-tls")["data"]
        return bool({data[key] != held[key] for key in ("tls.crt", "tls.key")} == {True})

    wait_for(is_new, "the certificate is renewed")
    put(control.get("secret", "-n", NAMESPACE, "demo-broker-tls"), tmp_path / PeerRole.BROKER)
    second = before.load()
    assert second.certificate_pem != first.certificate_pem
    storage = loaded(secrets, PeerRole.STORAGE, tmp_path).credentials
    shake(storage.server, second.client, HOSTS[PeerRole.STORAGE])
    shake(second.server, storage.client, HOSTS[PeerRole.BROKER])
