"""Names and numbers of new members, sides of a partition, and how a member is taken out."""

from pathlib import Path
from typing import Any

import pytest
from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.cluster import Voice, speaker, take_out
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.operations import growing
from pgherd_sidecar.local.operations.drills import parse


def new(directory: Path, nodes: int = 3, witnesses: int = 0) -> Herd:
    return herd.new_herd(
        directory, nodes=nodes, witnesses=witnesses, port_base=7500, postgres_bin=Path("/usr/bin")
    )


class TestNumbers:
    def test_the_next_node_has_the_next_number(self, tmp_path: Path) -> None:
        description, member = new(tmp_path).grown(None)
        assert (member.name, member.number, member.port, member.peer_port) == ("n4", 4, 7504, 7604)
        assert description.members[-1] == member

    def test_a_number_that_is_free_again_is_used_again(self, tmp_path: Path) -> None:
        description = new(tmp_path)
        description = description.without(description.member("n2"))
        description, member = description.grown("spare")
        assert (member.name, member.number) == ("spare", 2)
        assert [one.number for one in description.members] == [1, 2, 3]

    def test_a_name_that_is_taken_is_passed_over(self, tmp_path: Path) -> None:
        description = new(tmp_path, nodes=2).grown("n4")[0]  # has number 3
        assert description.grown(None)[1].name == "n5"

    @pytest.mark.parametrize("name", ["n1", "tls", "operator", "N4", "a b", "../n4", "-n", ""])
    def test_a_name_that_can_be_no_directory_or_certificate_is_refused(
        self, tmp_path: Path, name: str
    ) -> None:
        with pytest.raises(HerdError, match="choose another name, like n4"):
            new(tmp_path).grown(name)

    def test_numbers_end_where_the_sequences_do(self, tmp_path: Path) -> None:
        with pytest.raises(HerdError, match="for 8 nodes: promote a reader, or remove a node"):
            new(tmp_path, nodes=8).grown(None)

    def test_a_witness_has_a_name_of_its_own_and_no_database(self, tmp_path: Path) -> None:
        description = new(tmp_path, nodes=2, witnesses=1)
        assert [(one.name, one.witness) for one in description.members] == [
            ("n1", False),
            ("n2", False),
            ("w1", True),
        ]
        assert len(description.databases) == 2

    def test_a_witness_may_come_later_while_they_are_fewer_than_databases(
        self, tmp_path: Path
    ) -> None:
        description, member = new(tmp_path, nodes=2).grown(None, kind="witness")
        assert (member.name, member.number, member.witness) == ("w1", 3, True)
        with pytest.raises(HerdError, match="2 nodes can have 1 witnesses: add a node with"):
            description.grown(None, kind="witness")
        lost = description.without(member)
        assert lost.grown("w1", kind="witness")[1] == member

    def test_a_reader_leaves_the_numbers_of_writers_free_for_long(self, tmp_path: Path) -> None:
        description = new(tmp_path)
        for _ in range(6):
            description, member = description.grown(None, kind="reader")
        assert (member.name, member.number, member.port) == ("r6", 9, 7509)
        assert [one.number for one in description.members if one.reader] == [4, 5, 6, 7, 8, 9]
        assert [one.name for one in description.writers] == ["n1", "n2", "n3"]
        assert "7509" in description.reading_dsn()
        assert "7509" not in description.application_dsn(password=True)
        with pytest.raises(HerdError, match="promote a reader, or remove a node"):
            description.grown(None)

    def test_a_reader_is_promoted_if_its_number_is_one_of_the_sequences(
        self, tmp_path: Path
    ) -> None:
        description, reader = new(tmp_path, nodes=8).grown(None, kind="reader")
        with pytest.raises(HerdError, match="r1 has number 9, and only the first 8 can take"):
            description.promoted(reader)
        description, reader = new(tmp_path).grown(None, kind="reader")
        description, node = description.promoted(reader)
        assert description.writers[-1] == node == description.member("r1")
        with pytest.raises(HerdError, match="r1 is no reader: it takes writes already"):
            description.promoted(node)

    def test_witnesses_are_fewer_than_databases(self, tmp_path: Path) -> None:
        with pytest.raises(HerdError, match="2 nodes can have 1 witnesses"):
            new(tmp_path, nodes=2, witnesses=2)


def directories_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


async def test_a_removal_that_was_killed_before_the_files_were_gone_is_ended(
    tmp_path: Path,
) -> None:
    whole = new(tmp_path)
    herd.save(whole.without(whole.member("n3")))
    for name in ("n2", "n3", "tls"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node.json").touch()
    await growing.remove(tmp_path, "n3", growing.RemoveOptions(dead=False, timeout_s=1))
    assert directories_in(tmp_path) == {"n2", "tls"}
    for name in ("n3", "tls", "..", "n4"):
        with pytest.raises(HerdError, match="unknown node"):
            await growing.remove(tmp_path, name, growing.RemoveOptions(dead=False, timeout_s=1))


class TestSides:
    def test_they_are_named_like_a_cut(self, tmp_path: Path) -> None:
        assert parse("n1, n3|n2", new(tmp_path)) == [{"n1", "n3"}, {"n2"}]

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("n1|n2", "on which side are n3"),
            ("n1,n2,n3", "two sides or more"),
            ("n1,n2|n2,n3", "n2 is named twice"),
            ("n1,n2|n4", "unknown node n4"),
            ("n1,n2,n3|", "unknown node"),
        ],
    )
    def test_anything_else_is_refused(self, tmp_path: Path, text: str, error: str) -> None:
        with pytest.raises(HerdError, match=error):
            parse(text, new(tmp_path))


def status(name: str, **fields: Any) -> Status:
    return Status(name=name, cluster_id="c", state="primary", **fields)


def view(number: int, *names: str) -> dict[str, Any]:
    members = [{"name": name, "number": 1, "disk_id": f"disk of {name}"} for name in names]
    return {"id": number, "members": members}


def test_the_primary_component_speaks_for_the_herd_not_who_has_the_highest_term() -> None:
    inside = status("n1", component="primary", term=3, view=view(2, "n1"))
    cut_off = status("n2", component="secondary", term=9, view=view(1, "n1", "n2"))
    assert speaker([cut_off, inside]) == inside
    assert speaker([cut_off]) == cut_off
    assert speaker([]) is None


class Sidecar(AdminClient):
    """Answers as it is told, and notes what it is asked for."""

    def __init__(self, *answers: AdminError | None, members: tuple[str, ...]) -> None:
        self.members = members
        self.asked: list[tuple[str, str, str]] = []
        self._answers = list(answers)

    async def status(self) -> Status:
        return status("n1", component="primary", view=view(1, *self.members))

    async def leave(self, name: str, disk_id: str) -> None:
        self._ask("leave", name, disk_id)

    async def evict(self, name: str, disk_id: str) -> None:
        self._ask("evict", name, disk_id)

    def _ask(self, how: str, name: str, disk_id: str) -> None:
        self.asked.append((how, name, disk_id))
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer
        self.members = tuple(one for one in self.members if one != name)


def asking(sidecar: Sidecar) -> cluster.Listen:
    async def listen() -> list[Voice]:
        return [Voice(sidecar, await sidecar.status())]

    return listen


@pytest.mark.parametrize(("dead", "how"), [(False, "leave"), (True, "evict")])
async def test_it_is_asked_until_the_member_is_out(dead: bool, how: str) -> None:
    not_now = AdminError("503", 503, "no primary component")
    sidecar = Sidecar(not_now, None, members=("n1", "n2"))
    await take_out(asking(sidecar), "n2", dead=dead)
    assert sidecar.asked == [(how, "n2", "disk of n2")] * 2


async def test_what_is_refused_is_said_at_once() -> None:
    sidecar = Sidecar(AdminError("409", 409, "it is the last database"), members=("n1", "n2"))
    with pytest.raises(HerdError, match="n2 can't leave: it is the last database"):
        await take_out(asking(sidecar), "n2", dead=False)


async def test_who_is_gone_is_left_alone() -> None:
    sidecar = Sidecar(members=("n1",))
    await take_out(asking(sidecar), "n2", dead=True)
    assert sidecar.asked == []


class Watching(Sidecar):
    """Says, each time it is asked, how long n2 has been silent."""

    def __init__(self, *silent_s: float) -> None:
        super().__init__(None, members=("n1", "n2"))
        self._silent_s = list(silent_s)

    async def status(self) -> Status:
        peers = {"n2": {"last_seen_s": self._silent_s[0]}}
        if len(self._silent_s) > 1:
            self._silent_s.pop(0)
        return status("n1", component="primary", view=view(1, *self.members), peers=peers)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_SILENT_S", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("silent_s", [(0.01, 0.06), (0.03, 0.049, 0.06)])
async def test_who_has_just_died_is_evicted_when_it_has_been_silent(
    silent_s: tuple[float, ...],
) -> None:
    sidecar = Watching(*silent_s)
    await cluster.evict(asking(sidecar), "n2")
    assert sidecar.asked == [("evict", "n2", "disk of n2")]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "error"), [("n2", "n2 answers"), ("n9", "n9 is no member: the view has n1, n2")]
)
async def test_who_answers_and_who_is_none_is_not_evicted(name: str, error: str) -> None:
    sidecar = Watching(0.02, 0.01, 0.03)
    with pytest.raises(HerdError, match=error):
        await cluster.evict(asking(sidecar), name)
    assert sidecar.asked == []


async def test_the_only_one_that_answers_is_not_told_to_throw_itself_out() -> None:
    sidecar = Sidecar(members=("n1", "n2"))
    with pytest.raises(HerdError, match=r"only n1 itself answers, .* destroy the herd if"):
        await cluster.evict(asking(sidecar), "n1")
    assert sidecar.asked == []


async def test_nobody_is_asked_to_take_itself_out() -> None:
    sidecar = Sidecar(members=("n1",))
    with pytest.raises(HerdError, match="no other sidecar answers"):
        await take_out(asking(sidecar), "n1", dead=False)


async def test_a_successor_that_has_joined_meanwhile_is_left_alone() -> None:
    class Succeeded(Sidecar):
        async def status(self) -> Status:
            names = view(1, *self.members)
            if self.asked:
                names["members"][1]["disk_id"] = "another disk"
            return status("n1", component="primary", view=names)

    not_now = AdminError("503", 503, "no primary component")
    sidecar = Succeeded(not_now, members=("n1", "n2"))
    await take_out(asking(sidecar), "n2", dead=True)
    assert sidecar.asked == [("evict", "n2", "disk of n2")]
