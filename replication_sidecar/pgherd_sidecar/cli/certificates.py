"""The herd's own certificate authority, and a certificate for each of its nodes.

Files, each readable by the herd's account only, each replaced as a whole::

    tls/ca.crt  tls/ca.key              the authority; ca.crt may hold the one before it, too
    n1/tls/ca.crt  tls.crt  tls.key     what the sidecar of n1 reads, also while it runs

`provide` makes what is missing and renews what is about to end. A new authority is trusted beside
the one before it, which leaves when it has ended: links that exist are not interrupted.

Called by the commands that start nodes, with the herd's lock held.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pgherd_sidecar.cli.errors import HerdError
from pgherd_sidecar.cli.herd import Herd

_AUTHORITY_LASTS = timedelta(days=3650)
_CERTIFICATE_LASTS = timedelta(days=398)
_RENEWED_BEFORE = timedelta(days=133)
"""A third of its life before a certificate ends."""
_BACKDATED = timedelta(hours=1)
"""Clocks differ: a new certificate must not begin in another node's future."""
_NODE_USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str, begins: datetime, lasts: timedelta = _AUTHORITY_LASTS) -> "Authority":
        """Make one that has signed itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _common_name(name)
        certificate = (
            _builder(subject, subject, key, begins, lasts)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    def issue(
        self,
        name: str,
        begins: datetime,
        lasts: timedelta = _CERTIFICATE_LASTS,
        usages: Iterable[x509.ObjectIdentifier] = _NODE_USAGES,
    ) -> tuple[bytes, bytes]:
        """Return certificate and key, in PEM, of whoever goes by the DNS name ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject
        certificate = (
            _builder(_common_name(name.partition(".")[0]), issuer, key, begins, lasts)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return _pem(certificate), _key_pem(key)


def provide(herd: Herd, now: datetime | None = None) -> None:
    """Make and renew what the herd's nodes need.

    Raises:
        HerdError: the files of the authority are damaged.
    """
    now = datetime.now(UTC) if now is None else now
    authority, trusted = _authority(herd, now)
    for member in herd.members:
        directory = herd.node(member).tls
        _directory(directory)
        _write(directory / "ca.crt", trusted)
        name = f"{member.name}.{herd.cluster_id}.pgherd"
        if _must_be_issued(directory, name, authority, now):
            certificate, key = authority.issue(name, now - _BACKDATED)
            # A running sidecar that reads between the two keeps what it has, and looks again.
            _write(directory / "tls.key", key)
            _write(directory / "tls.crt", certificate)


def _authority(herd: Herd, now: datetime) -> tuple[Authority, bytes]:
    """Return the authority that signs, and all that are trusted, in PEM."""
    directory = herd.directory / "tls"
    _directory(directory)
    known = [
        certificate
        for certificate in _certificates(directory / "ca.crt")
        if certificate.not_valid_after_utc > now
    ]
    if known and known[0].not_valid_after_utc - now > _CERTIFICATE_LASTS:
        authority = Authority(known[0], _key(directory / "ca.key", known[0]))
    else:
        authority = Authority.new(f"pgherd {herd.cluster_id}", now - _BACKDATED)
        known.insert(0, authority.certificate)
        # The key first: a command that dies in between is repeated by the next, since the
        # certificate is still missing or too old.
        _write(directory / "ca.key", _key_pem(authority.key))
    trusted = b"".join(map(_pem, known))
    _write(directory / "ca.crt", trusted)
    return authority, trusted


def _must_be_issued(directory: Path, name: str, authority: Authority, now: datetime) -> bool:
    found = _certificates(directory / "tls.crt")
    return (
        not found
        or not (directory / "tls.key").exists()
        or found[0].not_valid_after_utc - now < _RENEWED_BEFORE
        or not _signed_by(found[0], authority)
        or not _is_of(found[0], name)
    )


def _is_of(certificate: x509.Certificate, name: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return False
    return name in names.value.get_values_for_type(x509.DNSName)


def _signed_by(certificate: x509.Certificate, authority: Authority) -> bool:
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    lasts: timedelta,
) -> x509.CertificateBuilder:
    public_key = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificates(path: Path) -> list[x509.Certificate]:
    if not path.exists():
        return []
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise _damaged(path) from error


def _key(path: Path, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (FileNotFoundError, TypeError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise _damaged(path)
    return key


def _damaged(path: Path) -> HerdError:
    return HerdError(
        f"{path} is missing or damaged: stop the herd, remove {path.parent}, and start it again"
    )


def _directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Replace a file, unless it is the same: a sidecar takes a new file for new certificates."""
    if path.exists() and path.read_bytes() == content:
        return
    fresh = path.with_suffix(path.suffix + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
