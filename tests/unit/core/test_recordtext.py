"""Record literals: exact for everything that PostgreSQL's record_out can write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.core.replication.recordtext import RecordTextError, join_record, split_record

_text = st.text(
    st.one_of(st.sampled_from('",\\() \t\n\v\f\ra1é\u00a0\u2003'), st.characters(codec="utf-8"))
)
_fields = st.lists(st.none() | _text, min_size=1, max_size=6)


def record_out(fields: list[str | None]) -> str:
    """What PostgreSQL's record_out does, character by character."""
    out = ""
    for number, value in enumerate(fields):
        out += "," if number else "("
        if value is None:
            continue
        quote = value == ""
        for char in value:
            quote = quote or char in '"\\(),' or char in " \t\n\v\f\r"
        out += '"' if quote else ""
        for char in value:
            out += char * 2 if char in '"\\' else char
        out += '"' if quote else ""
    return out + ")"


@given(_fields)
def test_splitting_undoes_record_out(fields: list[str | None]) -> None:
    assert split_record(record_out(fields)) == fields


@given(_fields)
def test_joining_equals_record_out(fields: list[str | None]) -> None:
    assert join_record(fields) == record_out(fields)


@given(_fields, st.integers(1, 7))
def test_splitting_may_stop_early(fields: list[str | None], count: int) -> None:
    assert split_record(record_out(fields), count) == fields[:count]


@given(st.text('(),"\\ a', max_size=12))
def test_what_record_out_does_not_write_is_refused(literal: str) -> None:
    try:
        fields = split_record(literal)
    except RecordTextError:
        return
    # Accepted: then it differs from PostgreSQL's own text at most by needless quotes.
    assert split_record(record_out(fields)) == fields
    assert literal.replace('"', "") == record_out(fields).replace('"', "")


@pytest.mark.parametrize(
    "literal", ["", "(", ")", "1,2", "(1", "(a b)", '("a)', '("a"b)', "(a\\b)", '("a\\b")', "(()"]
)
def test_malformed_literals_are_refused(literal: str) -> None:
    with pytest.raises(RecordTextError):
        split_record(literal)


def test_a_long_unterminated_field_is_refused_without_backtracking() -> None:
    with pytest.raises(RecordTextError):
        split_record('("' + "a" * 200_000 + ")")
