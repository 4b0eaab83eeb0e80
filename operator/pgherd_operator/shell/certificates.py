"""Passwords, the herd's own CA, and the certificates that it signs.

The private key of the CA is in a secret beside the herd, as are all others; whoever may read the
secrets of the namespace can pass for a member anyway.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_CERTIFICATE, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
_AUTHORITY_LASTS = timedelta(days=3650)
_BACKDATED = timedelta(hours=1)
"""Clocks differ: a new certificate must not begin in another node's future."""
_PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class Issued:
    """The data of a secret, and until when its certificate holds."""

    data: Mapping[str, bytes]
    not_after: datetime


def password() -> str:
    """A new password, of letters that need no quoting anywhere."""
    return secrets.token_urlsafe(_PASSWORD_BYTES)


def authority(name: str, now: datetime) -> Issued:
    """A new CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = subject(name)
    until = now + _AUTHORITY_LASTS
    certificate = (
        _builder(own, own, key, now, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = _pem(certificate)
    return Issued({CA_CERTIFICATE: pem, CERTIFICATE: pem, KEY: _key_pem(key)}, until)


def issue(
    ca: Mapping[str, bytes],
    name: x509.Name,
    dns_names: Sequence[str],
    now: datetime,
    validity: timedelta,
) -> Issued:
    """A certificate for servers and clients alike, as members are both to each other.

    Raises:
        ValueError: ``ca`` is not the data of a CA's secret.
    """
    try:
        signer = x509.load_pem_x509_certificate(ca[CERTIFICATE])
        signing_key = serialization.load_pem_private_key(ca[KEY], password=None)
    except KeyError as error:
        raise ValueError(f"the secret of the CA has no {error}") from error
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of the CA is of another kind than ours")
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + validity, signer.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(name, signer.subject, key, now, until)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in dns_names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
        .sign(signing_key, hashes.SHA256())
    )
    trusted = ca.get(CA_CERTIFICATE, ca[CERTIFICATE])
    data = {CA_CERTIFICATE: trusted, CERTIFICATE: _pem(certificate), KEY: _key_pem(key)}
    return Issued(data, until)


def validity(data: Mapping[str, str]) -> tuple[datetime, datetime] | None:
    """From when to when that holds which a Secret has, whoever has made it.

    All certificates that are presented have to hold, and one of those that are trusted.

    Args:
        data: of the Secret, in base64.

    Returns:
        None if it has no certificate that can be read.
    """
    try:
        presented = _load(data[CERTIFICATE])
        until = min(one.not_valid_after_utc for one in presented)
        if CA_CERTIFICATE in data:
            trusted = _load(data[CA_CERTIFICATE])
            until = min(until, max(one.not_valid_after_utc for one in trusted))
        return presented[0].not_valid_before_utc, until
    except (KeyError, ValueError):
        return None


def _load(encoded: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(base64.b64decode(encoded))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def subject(common_name: str, organization: str | None = None) -> x509.Name:
    """The name that a certificate is for; PostgreSQL writes it ``CN=...,O=...``."""
    names = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
    return x509.Name([x509.NameAttribute(oid, text[:64]) for oid, text in names if text])


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
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
