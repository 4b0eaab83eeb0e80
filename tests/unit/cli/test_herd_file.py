"""``herd.json`` and the layout of a herd's directory."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import herd

BIN = Path("/usr/lib/postgresql/15/bin")


def new(directory: Path, nodes: int = 3, port_base: int = 7500) -> herd.Herd:
    return herd.new_herd(directory, nodes=nodes, port_base=port_base, postgres_bin=BIN)


def test_nodes_have_stable_numbers_names_and_ports(tmp_path: Path) -> None:
    members = new(tmp_path).members
    assert [(m.number, m.name, m.port, m.peer_port) for m in members] == [
        (1, "n1", 7501, 7601),
        (2, "n2", 7502, 7602),
        (3, "n3", 7503, 7603),
    ]


def test_no_two_herds_share_identity_or_passwords(tmp_path: Path) -> None:
    one, other = new(tmp_path), new(tmp_path)
    secrets = {
        one.superuser_password,
        one.app_password,
        other.superuser_password,
        other.app_password,
    }
    assert one.cluster_id != other.cluster_id
    assert len(secrets) == 4


def test_saved_and_loaded_it_is_the_same_and_secret(tmp_path: Path) -> None:
    description = new(tmp_path)
    herd.save(description)
    assert herd.load(tmp_path) == description
    assert stat.S_IMODE((tmp_path / "herd.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("length", [10, 60, 90, 200])
def test_socket_paths_fit_whatever_the_directory(length: int) -> None:
    directory = Path("/" + "d" * length)
    description = new(directory, nodes=99, port_base=65000)
    node = description.node(description.members[-1])
    longest = [node.run / ".s.PGSQL.65535", node.hook / ".s.PGSQL.65535", node.admin_socket]
    assert max(len(str(path)) for path in longest) <= herd.SOCKET_PATH_MAX
    assert (description.sockets == directory) == (length <= 60)


def test_sockets_lie_elsewhere_where_libpq_would_take_a_path_for_two() -> None:
    """As a host it separates the members of a list by commas, whatever is around them."""
    assert new(Path("/a, b")).sockets != Path("/a, b")
    assert new(Path("/it's b")).sockets == Path("/it's b")


@pytest.mark.parametrize("name", ["a$b", 'a"b', "a`b", "a\\b", "a\nb"])
def test_a_directory_that_pg_ctl_would_give_to_a_shell_is_refused(name: str) -> None:
    with pytest.raises(HerdError, match="choose another directory"):
        new(Path("/herds") / name / "one")
    with pytest.raises(HerdError, match="choose another directory"):
        new(Path("/herds")).separate(uuid4(), Path("/herds") / name, ())


def test_directories_of_sockets_elsewhere_are_the_accounts_own(elsewhere: herd.Herd) -> None:
    """The first is in a directory in which everybody may make one of that name."""
    elsewhere.make_sockets(elsewhere.members[0])
    paths = elsewhere.node("n1")
    for made in (elsewhere.sockets, paths.run, paths.hook):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    elsewhere.sockets.chmod(0o775)
    elsewhere.make_sockets(elsewhere.members[0])
    assert stat.S_IMODE(elsewhere.sockets.stat().st_mode) == 0o700
    assert herd.load(elsewhere.directory) == elsewhere


@pytest.fixture
def elsewhere(tmp_path: Path) -> herd.Herd:
    directory = tmp_path / "herd"
    directory.mkdir()
    description = new(directory).model_copy(update={"sockets": tmp_path / "sockets"})
    herd.save(description)
    return description


def writable_by_all(sockets: Path) -> None:
    sockets.mkdir()
    sockets.chmod(0o777)


def link(sockets: Path) -> None:
    sockets.with_name("other").mkdir()
    sockets.symlink_to(sockets.with_name("other"))


def of_another(sockets: Path) -> None:
    sockets.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can do this")
    os.chown(sockets, 12345, -1)


@pytest.mark.parametrize("make", [writable_by_all, link, of_another, Path.touch])
def test_sockets_lie_in_no_directory_that_another_account_has_made(
    elsewhere: herd.Herd, make: Callable[[Path], None]
) -> None:
    """After a restart of the machine it is gone, and any account may be the first to make it."""
    make(elsewhere.sockets)
    with pytest.raises(HerdError, match="sockets is not a directory of this herd's account alone"):
        elsewhere.make_sockets(elsewhere.members[0])
    with pytest.raises(HerdError, match="remove it and repeat the command"):
        herd.load(elsewhere.directory)


@pytest.mark.parametrize("nodes", [0, -1, 100])
def test_an_impossible_number_of_nodes_is_refused(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(HerdError, match="a herd has 1 to 99 nodes"):
        new(tmp_path, nodes=nodes)


@pytest.mark.parametrize("port_base", [0, 65433, 70000])
def test_ports_that_do_not_exist_are_refused(tmp_path: Path, port_base: int) -> None:
    with pytest.raises(HerdError, match="choose another --port-base"):
        new(tmp_path, port_base=port_base)


def test_an_unknown_node_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(HerdError, match="unknown node n4: this herd has n1, n2, n3"):
        new(tmp_path).member("n4")


def test_a_directory_without_herd_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HerdError, match="is not a herd directory"):
        herd.load(tmp_path)


def test_a_file_in_place_of_the_directory_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HerdError, match=f"{tmp_path}/file is a file: give the herd's directory"):
        herd.load(tmp_path / "file")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "herd.json").write_text('{"format": 1')
    with pytest.raises(HerdError, match=r"herd\.json is damaged"):
        herd.load(tmp_path)


def test_the_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    herd.save(new(tmp_path))
    path = tmp_path / "herd.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(HerdError, match="has format 2: use the pgherd that wrote it"):
        herd.load(tmp_path)


def test_a_copied_directory_is_refused_and_the_original_named(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    herd.save(new(original))
    copy = original.rename(tmp_path / "copy")
    with pytest.raises(HerdError, match=f"is a copy of another herd's directory, {original}"):
        herd.load(copy)
