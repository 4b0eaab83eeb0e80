"""The output of isolationtester is divided among the permutations."""

from compatibility.isolation import permutations

_OUTPUT = """Parsed test spec with 2 sessions

starting permutation: a b
step a: UPDATE t SET a = 1;
step b: UPDATE t SET a = 2; <waiting ...>
s2: NOTICE:  process 4711 waits
step b: <... completed>
ERROR:  could not serialize access
CONTEXT:  PL/pgSQL function f() line 1

starting permutation: b a
step b: UPDATE t SET a = 2;
"""


def test_each_permutation_has_what_its_steps_said() -> None:
    assert permutations(_OUTPUT) == {
        "a b": "step a: UPDATE t SET a = 1;\nstep b: UPDATE t SET a = 2; <waiting ...>\n"
        "s2: NOTICE:  process waits\nstep b: <... completed>\n"
        "ERROR:  could not serialize access",
        "b a": "step b: UPDATE t SET a = 2;",
    }


def test_an_error_before_the_first_permutation_is_kept() -> None:
    assert permutations("Parsed test spec with 1 sessions\nsetup failed: ERROR:  no\n") == {
        "setup": "setup failed: ERROR:  no"
    }
