"""Passwords, the herd's own CA, and the certificates that it signs.

The private key of the CA is in a secret beside the herd, as are all others; whoever may read the
secrets of the namespace can pass for a member anyway.
"""

import base64
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from pgherd_sidecar.pki.authority import BACKDATED, Authority, key_id, key_pem, may_sign, pem

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
    trusted: Iterable[str] = (),
) -> Issued:
    """A certificate for servers and clients alike, as members are both to each other.

    Args:
        trusted: certificates of the authorities to trust; by default those that ``ca`` does.

    Raises:
        ValueError: ``ca`` is not the data of a CA's secret.
    """
    try:
        signs = Authority.load(ca[CERTIFICATE], ca[KEY])
    except KeyError as error:
        raise ValueError(f"the secret of the CA has no {error}") from error
    name, *aliases = dns_names
    begins, lasts = now - BACKDATED, validity + BACKDATED
    certificate, key = signs.issue(name, begins, lasts, owner=owner, aliases=aliases)
    data = {CA_CERTIFICATE: ca.get(CA_CERTIFICATE, ca[CERTIFICATE])} | trusting(trusted)
    data |= {CERTIFICATE: certificate, KEY: key}
    return Issued(data, min(begins + lasts, signs.certificate.not_valid_after_utc))


def trusting(trusted: Iterable[str]) -> dict[str, bytes]:
    """The part of a secret's data that tells of these authorities, if there are any."""
    text = "".join(sorted(trusted))
    return {CA_CERTIFICATE: text.encode()} if text else {}


def trusts(data: Mapping[str, str]) -> frozenset[str]:
    """The certificates of the authorities that a Secret tells of, an authority's own included.

    Args:
        data: of the Secret, in base64.
    """
    try:
        return frozenset(pem(one).decode() for one in _trusted(data))
    except ValueError:
        return frozenset()


def signer(data: Mapping[str, str]) -> str:
    """Id of who has signed the certificate of a Secret; empty where nobody can tell."""
    try:
        presented = _load(data[CERTIFICATE])[0]
        found = presented.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except (KeyError, ValueError, x509.ExtensionNotFound):
        return ""
    return _id(found.key_identifier or b"", presented.issuer)


def authority_id(data: Mapping[str, str]) -> str:
    """Id of the authority in a Secret, as ``signer``.

    It is empty where nobody can tell, and where nobody would accept what that authority signs: it
    is none, or does not lead to one that has signed itself.
    """
    try:
        own = above = _load(data[CERTIFICATE])[0]
        trusted = _trusted(data)
    except (KeyError, ValueError):
        return ""
    for _ in trusted:
        if not may_sign(above):
            break
        if above.issuer == above.subject:
            return _id(key_id(own), own.subject)
        above = next((one for one in trusted if _has_signed(one, above)), above)
    return ""


def _id(key: bytes, name: x509.Name) -> str:
    """Both have to be those that a certificate gives of its signer, or it is not good by it."""
    return f"{key.hex()} {name.rfc4514_string()}"


def _trusted(data: Mapping[str, str]) -> list[x509.Certificate]:
    presented = _load(data[CERTIFICATE]) if data.get(CERTIFICATE) else []
    named = _load(data[CA_CERTIFICATE]) if data.get(CA_CERTIFICATE) else []
    return named + [one for one in presented if may_sign(one)]


def _has_signed(one: x509.Certificate, other: x509.Certificate) -> bool:
    try:
        other.verify_directly_issued_by(one)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


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
        trusted = _trusted(data)
        if trusted:
            until = min(until, max(one.not_valid_after_utc for one in trusted))
        return presented[0].not_valid_before_utc, until
    except (KeyError, ValueError):
        return None


def _load(encoded: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(base64.b64decode(encoded))
