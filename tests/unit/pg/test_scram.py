"""Verifiers are those that PostgreSQL's own library makes."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pgherd_sidecar.pg import scram
from psycopg import pq

_PASSWORDS = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1)


def of_libpq(password: str) -> str:
    """What psql would send for it."""
    connection = pq.PGconn.connect_start(b"host=/nowhere")
    made = connection.encrypt_password(password.encode(), b"anybody", b"scram-sha-256")
    connection.finish()
    return made.decode()


@settings(max_examples=200, deadline=None)
@given(_PASSWORDS)
@example("plain")
@example(" \t\x7f")
@example("I\u00adX")  # soft hyphen: mapped to nothing
@example("\u2168 \u00aa")  # compatibility forms
@example("a\u00a0b\u3000c")  # blanks that are no ASCII
@example("\u06271")  # prohibited: begins from right to left, and does not end so
@example("\u0627 \u0628")
@example("\u0007é")  # prohibited
@example("\u00ad")  # nothing left
@example("\u0221")  # unassigned in Unicode 3.2
@example("\U0001f210")  # likewise, and normalized to what is assigned
def test_a_password_fits_the_verifier_that_postgresql_makes_of_it(password: str) -> None:
    assert scram.matches(password, of_libpq(password))


@settings(max_examples=20, deadline=None)
@given(_PASSWORDS, _PASSWORDS)
def test_a_verifier_is_its_own_password_s_and_no_other_s(password: str, other: str) -> None:
    made = scram.verifier(password)
    assert scram.is_verifier(made)
    assert scram.matches(password, made)
    assert made != scram.verifier(password), "the same salt twice"
    assert scram.matches(other, made) == scram.matches(other, of_libpq(password))


def test_a_verifier_that_is_given_is_kept() -> None:
    given_one, another = of_libpq("a"), of_libpq("a")
    assert scram.verifier(given_one) == given_one
    assert scram.matches(given_one, given_one)
    assert not scram.matches(another, given_one)


def test_what_is_no_verifier_fits_nothing() -> None:
    for stored in (None, "", "md5" + 32 * "0", "SCRAM-SHA-256$0:YQ==$YQ==:YQ==", "a"):
        assert not scram.matches("a", stored)
