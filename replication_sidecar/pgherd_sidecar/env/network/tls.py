"""TLS between members: who is at the other end is proved before anything else is read.

Always TLS 1.3, always with certificates on both sides. A member's certificate carries the DNS name
``NAME.CLUSTER_ID.pgherd``, so a member of another cluster fails although the same authority may
have signed for it. A certificate may carry more names; its holder can pass for each of them.

The channel does no IO: bytes in, bytes out. asyncio's own TLS is not used because it hides what
matters here: connections in the middle of a handshake, why a handshake failed, and how much waits
to be sent.

Nothing survives a connection: sessions are never resumed, since a resumed one would skip the check
of the certificate.
"""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import cast

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
"""As Kubernetes names them in a secret."""

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

_RECORD_BYTES = 16_384
"""The most that one record of TLS carries."""
_SEALED_AT_ONCE_BYTES = 16 * _RECORD_BYTES
"""OpenSSL's buffer never shrinks: what goes through it in one go stays allocated."""


class TlsError(Exception):
    """The other end is not who it must be, or the files here can't prove who we are."""


def can_be_certified(member: str) -> bool:
    """Tell whether a member's name may be part of the DNS name in its certificate."""
    return _DNS_LABEL.fullmatch(member) is not None


def certified_name(member: str, cluster_id: str) -> str:
    """Return the DNS name that the certificate of a member has to carry."""
    return f"{member}.{cluster_id}.pgherd"


def certified_members(names: frozenset[str], cluster_id: str) -> frozenset[str]:
    """Return the members of a cluster for which a certificate with these DNS names stands."""
    suffix = certified_name("", cluster_id)
    members = {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
    return frozenset(name for name in members if can_be_certified(name))


class TlsChannel:
    """One connection's TLS.

    Attributes:
        established: the handshake is done and the rest is known.
        names: DNS names in the certificate of the other end.
        expires_s: when that certificate ends, in seconds of Unix time.

    Args:
        context: with the own certificate and the trusted authorities.
        server_name: which name the certificate of the other end must carry, when it was we who
            dialled; None on the side that was dialled, where any certificate of a trusted
            authority will do and ``names`` must be looked at.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self.established = False
        self.names: frozenset[str] = frozenset()
        self.expires_s = 0.0
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the wire and return what they say; empty bytes begin the handshake.

        ``to_send`` may hold an answer afterwards, also when this fails.

        Raises:
            TlsError: no TLS, an older one, or not the certificate that is wanted.
        """
        self._incoming.write(data)
        parts = []
        try:
            if not self.established:
                self._tls.do_handshake()
                self._look_at_certificate()
                self.established = True
            # An exception costs more than a record: read only what there is. Empty is the end.
            while self._incoming.pending and (part := self._tls.read(_RECORD_BYTES)):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _look_at_certificate(self) -> None:
        certificate = self._tls.getpeercert()
        assert certificate is not None, "the context requires one"
        names = cast(tuple[tuple[str, str], ...], certificate.get("subjectAltName", ()))
        self.names = frozenset(value for kind, value in names if kind == "DNS")
        self.expires_s = float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))

    def to_send(self) -> bytes:
        """Return what the handshake wants to be sent; empty if nothing."""
        return self._outgoing.read()

    def seal(self, pieces: list[bytes]) -> list[bytes]:
        """Return what to send so that ``pieces`` arrive.

        Raises:
            TlsError: the connection is broken already.
        """
        sealed = []
        joined = b"".join(pieces)
        try:
            if len(joined) <= _RECORD_BYTES:  # nearly all
                self._tls.write(joined)
                return [self._outgoing.read()]
            content = memoryview(joined)
            for start in range(0, len(content), _SEALED_AT_ONCE_BYTES):
                self._write(content[start : start + _SEALED_AT_ONCE_BYTES])
                sealed.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        return sealed

    def _write(self, content: memoryview) -> None:
        while content:
            content = content[self._tls.write(content) :]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Contexts made of one state of the files.

    Attributes:
        signature: changes when a file is replaced.
        authorities: the trusted ones, as they are encoded.
        expires_s: when the own certificate ends, in seconds of Unix time.
    """

    signature: tuple[tuple[int, int, int], ...]
    server: ssl.SSLContext
    client: ssl.SSLContext
    authorities: frozenset[bytes]
    expires_s: float


class Credentials:
    """The own certificate and the trusted authorities, read from a directory and read again.

    ``ca.crt`` may hold several authorities, so that one can be replaced by another without a
    moment in which some members do not trust the others.

    Args:
        directory: where the three files are.
        name: the name that the own certificate carries, see ``certified_name``.

    Raises:
        TlsError: the files are missing, do not fit each other, or other members would refuse them.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._cluster_id = name.split(".")[1]  # members' names have no dots
        self._loaded = _load(directory, name, _signature(directory))

    def refresh(self) -> bool:
        """Read the files again if they were replaced; return whether they were.

        Raises:
            TlsError: they were, and are not usable. What was read before stays in use; they will
                be tried again.
        """
        signature = _signature(self._directory)
        if signature == self._loaded.signature:
            return False
        self._loaded = _load(self._directory, self._name, signature)
        return True

    def certified(self, member: str) -> str:
        """Return the name in the certificate of another member of the same cluster."""
        return certified_name(member, self._cluster_id)

    def members(self, names: frozenset[str]) -> frozenset[str]:
        """See ``certified_members``."""
        return certified_members(names, self._cluster_id)

    @property
    def authorities(self) -> frozenset[bytes]:
        """The trusted authorities' certificates."""
        return self._loaded.authorities

    @property
    def expires_s(self) -> float:
        """When the own certificate ends, in seconds of Unix time."""
        return self._loaded.expires_s

    @property
    def server(self) -> ssl.SSLContext:
        """For a server that speaks TLS by other means than a channel."""
        return self._loaded.server

    def answering(self) -> TlsChannel:
        """Return a channel for a connection that somebody dialled."""
        return TlsChannel(self._loaded.server)

    def dialling(self, name: str) -> TlsChannel:
        """Return a channel for a connection to the member certified as ``name``."""
        return TlsChannel(self._loaded.client, name)


def _signature(directory: Path) -> tuple[tuple[int, int, int], ...]:
    try:
        found = [(directory / name).stat() for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
    except OSError as error:
        raise TlsError(f"cannot read {error.filename}: {error.strerror}") from error
    return tuple((file.st_mtime_ns, file.st_ino, file.st_size) for file in found)


def _load(directory: Path, name: str, signature: tuple[tuple[int, int, int], ...]) -> _Loaded:
    """Read the files; that they can be used is shown by a handshake with ourselves."""
    try:
        server = _context(directory, ssl.PROTOCOL_TLS_SERVER)
        client = _context(directory, ssl.PROTOCOL_TLS_CLIENT)
    except ssl.SSLError as error:
        raise TlsError(f"cannot use the files in {directory}: {_reason(error)}") from error
    except OSError as error:
        raise TlsError(f"cannot read the files in {directory}: {error.strerror}") from error
    try:
        expires_s = _shake_hands_with_ourselves(server, client, name)
    except TlsError as error:
        raise TlsError(
            f"other members would refuse {directory / CERTIFICATE_FILE} as {name}: {error}"
        ) from error
    authorities = frozenset(client.get_ca_certs(binary_form=True))
    return _Loaded(signature, server, client, authorities, expires_s)


def _context(directory: Path, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.hostname_checks_common_name = False
    context.load_verify_locations(directory / CA_FILE)
    # Without a password an encrypted key would be asked for at the terminal.
    context.load_cert_chain(directory / CERTIFICATE_FILE, directory / KEY_FILE, password="")
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _shake_hands_with_ourselves(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> float:
    """Return when our certificate ends, if we accept it on both sides."""
    dialled, answering = TlsChannel(client, name), TlsChannel(server)
    dialled.receive(b"")
    answering.receive(dialled.to_send())
    dialled.receive(answering.to_send())
    answering.receive(dialled.to_send())
    if name not in answering.names:
        raise TlsError(f"it carries {', '.join(sorted(answering.names))}")
    return answering.expires_s


def _reason(error: ssl.SSLError) -> str:
    """What went wrong, without OpenSSL's line numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return (error.reason or str(error)).lower().replace("_", " ")
