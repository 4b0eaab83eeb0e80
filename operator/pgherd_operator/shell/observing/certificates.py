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
from pgherd_sidecar.pki.authority import BACKDATED, Authority, key_pem, pem

CA_CERTIFICATE, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
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
    made = Authority.new(name, now - BACKDATED)
    certificate = pem(made.certificate)
    data = {CA_CERTIFICATE: certificate, CERTIFICATE: certificate, KEY: key_pem(made.key)}
    return Issued(data, made.certificate.not_valid_after_utc)


def issue(
    ca: Mapping[str, bytes],
    owner: x509.Name,
    dns_names: Sequence[str],
    now: datetime,
    validity: timedelta,
) -> Issued:
    """A certificate for servers and clients alike, as members are both to each other.

    Raises:
        ValueError: ``ca`` is not the data of a CA's secret.
    """
    try:
        signer = Authority.load(ca[CERTIFICATE], ca[KEY])
    except KeyError as error:
        raise ValueError(f"the secret of the CA has no {error}") from error
    name, *aliases = dns_names
    begins, lasts = now - BACKDATED, validity + BACKDATED
    certificate, key = signer.issue(name, begins, lasts, owner=owner, aliases=aliases)
    trusted = ca.get(CA_CERTIFICATE, ca[CERTIFICATE])
    data = {CA_CERTIFICATE: trusted, CERTIFICATE: certificate, KEY: key}
    return Issued(data, min(begins + lasts, signer.certificate.not_valid_after_utc))


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
