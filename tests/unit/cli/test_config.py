"""The sidecar's configuration file: what is accepted, and what a mistake reads like."""

import json
from pathlib import Path
from typing import Any

import pytest
from pgherd_sidecar.agent.base import config
from pydantic import ValidationError


def content(**changes: Any) -> dict[str, Any]:
    members = [
        {"name": f"n{number}", "number": number, "host": "127.0.0.1", "port": 7600 + number}
        for number in (1, 2, 3)
    ]
    return {
        "cluster_id": "5f0f2d3a-94a1-4f8e-9d0c-0d8f7f1c2b3a",
        "name": "n2",
        "number": 2,
        "members": members,
        "data_dir": "/herd/n2/sidecar",
        "postgres": {"host": "/herd/n2/run", "port": 7502},
        "hook_dir": "/herd/n2/hook",
        "admin_socket": "/herd/n2/run/admin.sock",
    } | changes


TLS = {"tls": {"directory": "/herd/n2/tls"}}


def elsewhere(host: str = "192.0.2.3") -> list[dict[str, Any]]:
    """The members when one of them is on another machine."""
    members = list(content()["members"])
    return [*members[:2], members[2] | {"host": host}]


def renamed(name: str) -> list[dict[str, Any]]:
    """The members when the second has another name."""
    members = list(content()["members"])
    return [members[0], members[1] | {"name": name}, members[2]]


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(data))
    return path


def test_a_short_file_is_filled_with_defaults(tmp_path: Path) -> None:
    loaded = config.load_config(written(tmp_path, content()))
    assert loaded.address.port == 7602
    assert (loaded.postgres.user, loaded.postgres.database) == ("postgres", "app")
    assert loaded.timing.election_timeout_ms >= 3 * loaded.timing.heartbeat_ms


def test_what_was_written_by_the_model_is_read_back_equal(tmp_path: Path) -> None:
    first = config.load_config(written(tmp_path, content(log_level="debug")))
    path = tmp_path / "again.json"
    path.write_text(first.model_dump_json())
    assert config.load_config(path) == first


def test_members_on_several_machines_need_certificates(tmp_path: Path) -> None:
    loaded = config.load_config(written(tmp_path, content(members=elsewhere(), **TLS)))
    assert loaded.tls is not None


def test_a_member_listens_on_its_own_address_unless_told_otherwise() -> None:
    loaded = config.NodeConfig.model_validate(content())
    assert (loaded.listens_on, loaded.admin_port, loaded.health_port) == ("127.0.0.1", None, None)
    wide = config.NodeConfig.model_validate(content(listen_host="0.0.0.0", admin_port=7802, **TLS))
    assert wide.listens_on == "0.0.0.0"


def test_it_cannot_be_changed() -> None:
    loaded = config.NodeConfig.model_validate(content())
    with pytest.raises(ValidationError, match="frozen"):
        loaded.name = "n1"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"nmae": "n1"}, "nmae: Extra inputs are not permitted"),
        ({"name": "n7"}, "members do not contain n7 with number 2"),
        ({"number": 3}, "members do not contain n2 with number 3"),
        ({"members": content()["members"] * 2}, "names of the members are not unique"),
        ({"postgres": {"host": "/x", "port": 0}}, "postgres.port: "),
        ({"postgres": {"host": "/x", "port": 1, "tcp_host": "n2..x"}}, "postgres.tcp_host: "),
        ({"members": elsewhere("n" * 64), **TLS}, "members.2.host: "),
        ({"timing": {"election_timeout_ms": 100}}, "at least three heartbeat_ms"),
        ({"cluster_id": "one"}, "cluster_id: "),
        ({"members": elsewhere()}, "tls is missing: n3 is reached by 192.0.2.3"),
        ({"members": renamed("N2"), "name": "N2", **TLS}, "N2 can't be part of a DNS name"),
        ({"members": renamed("operator"), "name": "operator"}, "no member can be called operator"),
        ({"members": renamed("import"), "name": "import"}, "no member can be called import"),
        ({"listen_host": "0.0.0.0"}, "tls is missing: this member listens on 0.0.0.0"),
        ({"admin_port": 7802}, "admin_port needs tls"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_field(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    path = written(tmp_path, content(**changes))
    with pytest.raises(config.ConfigError) as raised:
        config.load_config(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert complaint in message
    assert "\n" not in message


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"cannot read .*node\.json: No such file"):
        config.load_config(tmp_path / "node.json")
