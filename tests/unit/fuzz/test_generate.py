"""A seed is a case: the same in every process, and another one for every seed."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pglast
from fuzz.case import parse
from fuzz.generate import case

_SEEDS = range(100)
_HERE = Path(__file__).parents[3]


def test_the_same_seed_is_the_same_case_in_another_process() -> None:
    program = "from fuzz.generate import case; print(case(7).text(), end='')"
    paths = os.pathsep.join(map(str, (_HERE, _HERE / "tests")))
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == case(7).text()


def test_seeds_differ() -> None:
    assert len({case(seed).text() for seed in range(50)}) == 50


def test_every_case_can_be_written_down_and_replayed() -> None:
    for seed in _SEEDS:
        drawn = case(seed)
        assert parse(drawn.text()) == [drawn]


def test_what_is_drawn_is_sql_and_has_some_of_everything() -> None:
    kinds: Counter[str] = Counter()
    for seed in _SEEDS:
        for step in case(seed).steps:
            for statement in step.statements:
                for one in pglast.parse_sql(statement.replace("@schema@", "x")):
                    kinds[type(one.stmt).__name__] += 1
    wanted = [
        "InsertStmt",
        "UpdateStmt",
        "DeleteStmt",
        "MergeStmt",
        "TruncateStmt",
        "SelectStmt",
        "CreateStmt",
        "AlterTableStmt",
        "IndexStmt",
        "CreateEnumStmt",
        "CreateDomainStmt",
        "CompositeTypeStmt",
        "CreateRangeStmt",
        "CreateTrigStmt",
        "CreateFunctionStmt",
        "ViewStmt",
        "CreateTableAsStmt",
        "RefreshMatViewStmt",
        "CreatePolicyStmt",
        "GrantStmt",
        "DoStmt",
        "TransactionStmt",
        "VariableSetStmt",
        "DeclareCursorStmt",
        "CommentStmt",
        "DropStmt",
        "RenameStmt",
        "AlterEnumStmt",
        "AlterDomainStmt",
        "CreateStatsStmt",
        "VacuumStmt",
        "LockStmt",
        "ConstraintsSetStmt",
        "CallStmt",
    ]
    assert set(wanted) <= set(kinds)
