"""The herd's own certificate authority, and a certificate for each of its nodes.

Files, each readable by the herd's account only, each replaced as a whole::

    tls/ca.crt  tls/ca.key              the authority; ca.crt may hold the one before it, too
    n1/tls/ca.crt  tls.crt  tls.key     what the sidecar of n1 reads, also while it runs

`provide` makes what is missing, and anew what is about to end or has not begun yet. A new authority
is trusted beside the one before it, which leaves when it has ended: links that exist are not
interrupted.

Called by the commands that start nodes, with the herd's lock held.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.env.storage import durable
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.pki.authority import AUTHORITY_LASTS, BACKDATED, Authority, key_pem, pem

_CERTIFICATE_LASTS = timedelta(days=398)
_RENEWED_BEFORE = timedelta(days=133)
"""A third of its life before a certificate ends."""


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
            former = _certificates(directory / "tls.crt")
            certificate, key = authority.issue(name, *_validity(former, now, _CERTIFICATE_LASTS))
            # A running sidecar that reads between the two keeps what it has, and looks again.
            _write(directory / "tls.key", key)
            _write(directory / "tls.crt", certificate)


def _authority(herd: Herd, now: datetime) -> tuple[Authority, bytes]:
    """Return the authority that signs, and all that are trusted, in PEM."""
    directory = herd.directory / "tls"
    _directory(directory)
    known = _certificates(directory / "ca.crt")
    if known and _lasts(known[0], now, _CERTIFICATE_LASTS):
        authority = _loaded(known[0], directory / "ca.key")
        known = [certificate for certificate in known if certificate.not_valid_after_utc > now]
    else:
        # None leaves now: those that have ended may have done so only by a clock that is ahead.
        validity = _validity(known, now, AUTHORITY_LASTS)
        authority = Authority.new(f"pgherd {herd.cluster_id}", *validity)
        known.insert(0, authority.certificate)
        # The key first: a command that dies in between is repeated by the next, since the
        # certificate is still missing or too old.
        _write(directory / "ca.key", key_pem(authority.key))
    trusted = b"".join(map(pem, known))
    _write(directory / "ca.crt", trusted)
    return authority, trusted


def _must_be_issued(directory: Path, name: str, authority: Authority, now: datetime) -> bool:
    found = _certificates(directory / "tls.crt")
    return (
        not found
        or not (directory / "tls.key").exists()
        or not _lasts(found[0], now, _RENEWED_BEFORE)
        or not _signed_by(found[0], authority)
        or not _is_of(found[0], name)
    )


def _lasts(certificate: x509.Certificate, now: datetime, duration: timedelta) -> bool:
    """Whether it has begun, and goes on for so long."""
    return (
        certificate.not_valid_before_utc <= now and certificate.not_valid_after_utc - now > duration
    )


def _validity(
    former: Iterable[x509.Certificate], now: datetime, lasts: timedelta
) -> tuple[datetime, timedelta]:
    """When a new certificate begins, and how long it lasts.

    If a former one begins later, the clock was ahead or is behind. Then the new one is good by both
    times.
    """
    begins = now - BACKDATED
    later = (one.not_valid_after_utc for one in former if one.not_valid_before_utc > now)
    return begins, max([lasts, *(end - begins for end in later)])


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


def _certificates(path: Path) -> list[x509.Certificate]:
    if not path.exists():
        return []
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise _damaged(path) from error


def _loaded(certificate: x509.Certificate, key: Path) -> Authority:
    try:
        return Authority.load(pem(certificate), key.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise _damaged(key) from error


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
    durable.replace(path.parent, path.name, content, 0o600)
