"""Passwords as PostgreSQL keeps them: SCRAM-SHA-256 verifiers (RFC 5802, RFC 7677).

Made here so that no password reaches a server, and compared so that one which is right already is
not written again: each verifier has a salt of its own. It keeps nothing.
"""

import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from typing import Final

ITERATIONS: Final = 4096
"""PostgreSQL's default."""
_SALT_BYTES: Final = 16
_BASE64: Final = "[A-Za-z0-9+/]+={0,2}"
_VERIFIER: Final = re.compile(
    rf"SCRAM-SHA-256\$([1-9][0-9]{{0,8}}):({_BASE64})\$({_BASE64}):({_BASE64})"
)
_PROHIBITED: Final = (
    stringprep.in_table_a1, stringprep.in_table_c12, stringprep.in_table_c21_c22,
    stringprep.in_table_c3, stringprep.in_table_c4, stringprep.in_table_c5,
    stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9,
)  # fmt: skip


def is_verifier(text: str) -> bool:
    """Whether PostgreSQL takes a password for a verifier, and stores it as it is."""
    return _VERIFIER.fullmatch(text) is not None


def verifier(password: str) -> str:
    """Make a verifier with a new salt; one that is given stays itself."""
    if is_verifier(password):
        return password
    return _make(password, secrets.token_bytes(_SALT_BYTES), ITERATIONS)


def matches(password: str, stored: str | None) -> bool:
    """Whether a role with this verifier is let in with the password, or was given it as it is."""
    found = _VERIFIER.fullmatch(stored or "")
    if stored is None or found is None:
        return False  # none, or one of MD5
    if is_verifier(password):
        return hmac.compare_digest(password, stored)
    return hmac.compare_digest(_make(password, b64decode(found[2]), int(found[1])), stored)


def _make(password: str, salt: bytes, iterations: int) -> str:
    salted = hashlib.pbkdf2_hmac("sha256", _prepared(password), salt, iterations)
    client, server = (hmac.digest(salted, key, "sha256") for key in (b"Client Key", b"Server Key"))
    stored = hashlib.sha256(client).digest()
    coded = (b64encode(part).decode() for part in (salt, stored, server))
    return "SCRAM-SHA-256${}:{}${}:{}".format(iterations, *coded)


def _prepared(password: str) -> bytes:
    """SASLprep (RFC 4013), as servers and clients of PostgreSQL do it.

    What it prohibits they take as it is. They look for that before they normalize, so a character
    that is newer than Unicode 3.2 counts as unassigned, whatever it is normalized to.
    """
    if password.isascii():
        return password.encode()
    blanks = "".join(" " if stringprep.in_table_c12(char) else char for char in password)
    mapped = "".join(char for char in blanks if not stringprep.in_table_b1(char))
    found = unicodedata.normalize("NFKC", mapped)
    prohibited = any(within(char) for char in mapped for within in _PROHIBITED)
    usable = found and not prohibited and _reads_one_way(mapped)
    return (found if usable else password).encode()


def _reads_one_way(text: str) -> bool:
    """RFC 3454, section 6: text from right to left begins and ends so, and has no other."""
    if not any(stringprep.in_table_d1(char) for char in text):
        return True
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    return ends and not any(stringprep.in_table_d2(char) for char in text)
