"""TLS without sockets: what the files must be, and what a stranger's bytes can do."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st
from link_ends import CLUSTER, authority, credentials_of, equip, pem, replace
from pgherd_sidecar.env.network.tls import Credentials, TlsChannel, TlsError, certified_name

N1, N2 = certified_name("n1", CLUSTER), certified_name("n2", CLUSTER)


Members = tuple[Credentials, Credentials]


def pair(members: Members) -> tuple[TlsChannel, TlsChannel]:
    """Both ends of a new connection that the first dials to the second."""
    return members[0].dialling(N2), members[1].answering()


def shake(dialling: TlsChannel, answering: TlsChannel) -> Iterator[bytes]:
    """Exchange the flights of a handshake; yields each as it is on the wire."""
    ends = (dialling, answering)
    dialling.receive(b"")
    for turn in range(3):
        flight = ends[turn % 2].to_send()
        yield flight
        ends[1 - turn % 2].receive(flight)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    directory, by = tmp_path_factory.mktemp("tls"), authority()
    one, two = (credentials_of(equip(directory / n, by, n), n) for n in ("n1", "n2"))
    return one, two


def test_each_side_learns_the_other_ones_name_and_then_reads_what_it_says(
    members: Members,
) -> None:
    dialling, answering = pair(members)
    for _ in shake(dialling, answering):
        pass
    assert (set(dialling.names), set(answering.names)) == ({N2}, {N1})
    for size in (0, 1, 16_384, 1_000_000):
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        sealed = b"".join(dialling.seal([content[:100], content[100:]]))
        assert sealed[10:30] not in content or not content
        assert answering.receive(sealed) == content


def test_what_waits_in_openssl_is_bounded_whatever_is_sent(members: Members) -> None:
    dialling, answering = pair(members)
    for _ in shake(dialling, answering):
        pass
    pieces = dialling.seal([bytes(10_000_000)])
    assert max(map(len, pieces)) < 300_000
    assert dialling.to_send() == b""


def test_what_follows_the_end_is_not_read(members: Members) -> None:
    dialling, answering = pair(members)
    for _ in shake(dialling, answering):
        pass
    last = b"".join(dialling.seal([b"last words"]))
    with contextlib.suppress(ssl.SSLWantReadError):
        dialling._tls.unwrap()
    assert answering.receive(last + dialling.to_send() + last) == b"last words"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda files: (files / "tls.key").unlink(), "tls.key: No such file"),
        (lambda files: replace(files / "ca.crt", ""), "cannot use the files in"),
        (lambda files: replace(files / "tls.crt", "no PEM"), "cannot use the files in"),
        (lambda files: equip(files, authority(), "n2"), "hostname mismatch|not valid for"),
        (lambda files: equip(files, authority(), "n1", cluster="c"), "mismatch|not valid for"),
        (lambda files: equip(files, authority(), "n1", trusts=pem(authority())), "certificate"),
        (
            lambda files: equip(files, authority(), "n1", lasts=timedelta(hours=1)),
            "certificate has expired",
        ),
        (
            lambda files: equip(
                files, authority(), "n1", begins=datetime.now(UTC) + timedelta(days=1)
            ),
            "certificate is not yet valid",
        ),
        (
            lambda files: equip(files, authority(), "n1", usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
            "unsuitable certificate purpose",
        ),
    ],
)
def test_files_that_other_members_would_refuse_are_refused_here(
    tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    files = equip(tmp_path / "n1", authority(), "n1")
    credentials = credentials_of(files, "n1")
    before = credentials.expires_s
    damage(files)
    with pytest.raises(TlsError, match=complaint):
        credentials_of(files, "n1")
    with pytest.raises(TlsError, match=complaint):
        credentials.refresh()
    assert credentials.expires_s == before


def test_an_encrypted_key_is_an_error_and_no_question_at_the_terminal(tmp_path: Path) -> None:
    files = equip(tmp_path / "n1", authority(), "n1")
    key = serialization.load_pem_private_key((files / "tls.key").read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    replace(files / "tls.key", encrypted.decode())
    with pytest.raises(TlsError):
        credentials_of(files, "n1")


def test_files_are_read_again_only_when_they_were_replaced(tmp_path: Path) -> None:
    by = authority()
    credentials = credentials_of(equip(tmp_path / "n1", by, "n1"), "n1")
    before = credentials.expires_s
    assert not credentials.refresh()
    equip(tmp_path / "n1", by, "n1", lasts=timedelta(days=700))
    assert credentials.refresh()
    assert credentials.expires_s > before
    assert not credentials.refresh()


def test_a_half_replaced_pair_of_key_and_certificate_changes_nothing(tmp_path: Path) -> None:
    by = authority()
    files = equip(tmp_path / "n1", by, "n1")
    certificate = (files / "tls.crt").read_text()
    credentials = credentials_of(files, "n1")
    equip(files, by, "n1", lasts=timedelta(days=700))
    renewed = (files / "tls.crt").read_text()
    replace(files / "tls.crt", certificate)
    with pytest.raises(TlsError, match="mismatch"):
        credentials.refresh()
    for _ in shake(credentials.dialling(N1), credentials.answering()):
        pass
    replace(files / "tls.crt", renewed)
    assert credentials.refresh()


def test_sessions_are_not_resumed(tmp_path: Path) -> None:
    by = authority()
    files = equip(tmp_path / "n1", by, "n1")
    answering = credentials_of(files, "n1").answering()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files / "ca.crt")
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    dialling = TlsChannel(context, N1)
    for _ in shake(dialling, answering):
        pass
    assert answering.to_send() == b""  # a ticket would be on its way now


@settings(deadline=None)
@given(st.lists(st.binary(max_size=600), max_size=4))
def test_a_strangers_bytes_wait_or_are_refused_and_prove_nothing(
    members: Members, garbage: list[bytes]
) -> None:
    channel = pair(members)[1]
    for data in garbage:
        try:
            assert channel.receive(data) == b""
        except TlsError:
            break
    assert not channel.established
    assert not channel.names


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(0, 20_000))
def test_a_flipped_bit_in_a_handshake_ends_it_or_changes_nothing(
    members: Members, damaged: int, place: int
) -> None:
    ends = pair(members)
    ends[0].receive(b"")
    for turn in range(3):
        flight = bytearray(ends[turn % 2].to_send())
        if turn == damaged:
            flight[place // 8 % len(flight)] ^= 1 << place % 8
        try:
            ends[1 - turn % 2].receive(bytes(flight))
        except TlsError:
            assert turn >= damaged
            return
    if ends[1].established:  # the version in a record's header is not looked at, for example
        assert (set(ends[0].names), set(ends[1].names)) == ({N2}, {N1})


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=100), st.integers(0, 1000))
def test_a_flipped_bit_in_what_is_said_is_noticed(
    members: Members, content: bytes, place: int
) -> None:
    dialling, answering = pair(members)
    for _ in shake(dialling, answering):
        pass
    sealed = bytearray(b"".join(dialling.seal([content])))
    sealed[place // 8 % len(sealed)] ^= 1 << place % 8
    with contextlib.suppress(TlsError):
        assert answering.receive(bytes(sealed)) == b""  # a greater length makes it wait
