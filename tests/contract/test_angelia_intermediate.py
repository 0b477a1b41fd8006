"""The cluster's authority may itself be signed by another one, as cert-manager's often are."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from strata_angelia import ports
from strata_runtime.authority import CA_FILE, CA_KEY_FILE
from strata_runtime.errors import ConfigError
from strata_runtime.roles import PeerRole
from tests.contract.test_angelia_tls import Scene, failure, say
from tests.contract.test_angelia_tls import scene as scene

Key = ec.EllipticCurvePrivateKey


def signed(name: str, issuer: str, key: Key, issuer_key: Key) -> x509.Certificate:
    """Return an authority that another one signed; itself, if it is the same."""
    now = datetime.datetime.now(datetime.UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=100))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def put(folder: Path, certificate: x509.Certificate, key: Key) -> None:
    """Write the folder of an authority."""
    folder.mkdir()
    pem = serialization.Encoding.PEM
    (folder / CA_FILE).write_bytes(certificate.public_bytes(pem))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / CA_KEY_FILE).write_bytes(key.private_bytes(pem, form, secret))


@pytest.fixture
def authorities(tmp_path: Path) -> Path:
    """The folders root, ca and other; root signed the other two."""
    root, own, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    put(tmp_path / "root", signed("root", "root", root, root), root)
    put(tmp_path / "ca", signed("cluster", "root", own, root), own)
    put(tmp_path / "other", signed("other", "root", other, root), other)
    return tmp_path


@pytest.mark.usefixtures("authorities")
async def test_an_authority_that_another_signed_is_one(scene: Scene) -> None:
    """`ca.crt` holds the authority alone: whoever signed it is not needed, and signs nothing."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    channel = scene.connect(endpoint, scene.make("broker", PeerRole.BROKER))
    assert (await say(channel)).body == b"on"


@pytest.mark.usefixtures("authorities")
async def test_its_siblings_and_its_own_authority_are_strangers(scene: Scene) -> None:
    """A server takes no certificate of the root, or of another authority that the root signed."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    own = (scene.folder / "ca" / CA_FILE).read_bytes()
    for authority in ("other", "root"):
        stranger = scene.make(authority + "-broker", PeerRole.BROKER, authority=authority)
        # It accepts the server's certificate.
        theirs = stranger.files.ca_file.read_bytes()
        stranger.files.ca_file.write_bytes(own + theirs)
        stranger.load()
        refused = await failure(scene.connect(endpoint, stranger))
        assert refused.code == ports.UNAVAILABLE
        assert "it does not accept this process's certificate" in refused.reason
    assert scene.handler.contexts == []


async def test_the_authority_that_signed_must_be_in_the_file(
    authorities: Path, scene: Scene
) -> None:
    """The root alone would take the certificates of all its authorities, with any role."""
    tls = scene.make("storage", PeerRole.STORAGE)
    root = (authorities / "root" / CA_FILE).read_bytes()
    tls.files.ca_file.write_bytes(root)
    with pytest.raises(ConfigError, match="is not signed by an authority in"):
        tls.load()
