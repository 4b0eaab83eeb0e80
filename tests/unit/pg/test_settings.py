"""What is decided about settings is what the product does, and what the page says."""

import re
from importlib import resources
from pathlib import Path

from pgherd_sidecar.agent.apply.applier import WRITER_SETTINGS
from pgherd_sidecar.pg import settings, settings_page, trusted

REPOSITORY = Path(__file__).parents[3]
SQL = resources.files("pgherd_sidecar.pg") / "sql"

_SET = re.compile(r"SET (\w+) (?:=|TO) ('[^']*'|[\w.]+)")


def spelled(name: str) -> dict[str, str]:
    """The settings of the functions in one of our files, as they are written."""
    text = re.sub(r"''", "'", (SQL / name).read_text())
    return {setting.lower(): value.strip("'") for setting, value in _SET.findall(text)}


def test_the_page_is_written_from_the_list() -> None:
    page = (REPOSITORY / "docs" / "settings.md").read_text()
    assert page == settings_page.page(), "python -m pgherd_sidecar.pg.settings_page > that page"


def test_each_setting_is_decided_once() -> None:
    names = [name.lower() for names in settings.HARMLESS.values() for name in names.split()]
    names += [one.name.lower() for one in settings.SETTINGS]
    assert len(names) == len(set(names))


def test_each_setting_that_matters_says_what_is_done() -> None:
    assert all(one.fixed is not None or one.carried or one.also for one in settings.SETTINGS)


def test_commands_carry_these_settings() -> None:
    text = (SQL / "043_command_events.sql").read_text()
    [listed] = re.findall(r"unnest\('\{(.*?)\}'::pg_catalog.text\[\]\) AS s\(name\)", text, re.S)
    assert sorted(name.strip() for name in listed.split(",")) == sorted(settings.CARRIED)


def test_our_sessions_begin_with_the_fixed_values() -> None:
    sent = trusted.options()
    for name, value in settings.FIXED.items():
        assert f"-c {name}={value.replace(' ', chr(92) + ' ')}" in sent
    for name in settings.FIXED_WHERE_KNOWN:
        assert f"'{name}'" in trusted.AFTERWARDS


def test_rows_are_captured_and_written_under_the_same_values() -> None:
    fixed = {name.lower(): value for name, value in settings.FIXED.items()}
    pairs = [pair for one in WRITER_SETTINGS for pair in _SET.findall(one)]
    written = {name.lower(): value.strip("'") for name, value in pairs}
    # The writers' own: no triggers, and what the majority holds needs no flush here.
    own = {"session_replication_role", "synchronous_commit"}
    different = {name for name, value in written.items() if name in fixed and fixed[name] != value}
    assert different <= own

    captured = spelled("030_catalog.sql")
    said = {one.name.lower() for one in settings.SETTINGS if "captured under it" in one.also}
    assert said <= captured.keys()
    for name, value in {**captured, **spelled("044_command_end.sql")}.items():
        if name in fixed and name != "search_path":
            assert value == fixed[name], name


def test_an_unknown_setting_is_not_decided() -> None:
    assert settings.is_decided("work_mem")
    assert settings.is_decided("datestyle")
    assert settings.is_decided("auto_explain.log_analyze")
    assert not settings.is_decided("a_setting_of_postgresql_19")
    assert not settings.is_decided("an_extension.setting")
