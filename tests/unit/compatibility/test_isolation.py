"""The output of isolationtester is divided among the permutations."""

from pathlib import Path

from compatibility.isolation import SnapshotIsolation, permutations

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


def test_at_repeatable_read_no_session_leaves_a_transaction_open(tmp_path: Path) -> None:
    suite = SnapshotIsolation()
    suite.sources = tmp_path
    (tmp_path / "isolation_schedule").write_text("test: a b\n")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "a.spec").write_text("session s1\nstep x { SELECT 1; }\n")
    (tmp_path / "specs" / "b.spec").write_text(
        "session s1\nsetup { BEGIN isolation level SERIALIZABLE; }\nstep x { SELECT 1; }\n"
        "session s2\nstep y { SELECT 2; }\nteardown { SELECT 3; }\n"
        "permutation x y\n"
    )
    assert suite.names([]) == ["b"]
    assert suite.specification("b") == (
        "session s1\nsetup { BEGIN ISOLATION LEVEL REPEATABLE READ; }\nstep x { SELECT 1; }\n"
        "\nteardown { ROLLBACK; }\n"
        "session s2\nstep y { SELECT 2; }\nteardown { SELECT 3; }\n"
        "permutation x y\n"
    )
