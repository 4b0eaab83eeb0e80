"""Old snapshots are removed; nothing else ever is."""

import json
from pathlib import Path

from pgherd_spark.storing.layout import expire
from pgherd_spark.storing.stores import DirectoryStore


def make(
    to: Path, gid: int, cluster_id: str = "a", *, whole: bool = True, series: str | None = None
) -> Path:
    directory = to / f"gid-{gid:012}-00ff"
    (directory / "data").mkdir(parents=True)
    (directory / "job.json").write_text("{}")
    if whole:
        (directory / "manifest.json").write_text(
            json.dumps({"cluster_id": cluster_id, "series": series})
        )
    return directory


def test_the_newest_by_gid_stay_and_so_does_what_is_another_herd_s_or_not_whole(
    tmp_path: Path,
) -> None:
    old, older, new = make(tmp_path, 90), make(tmp_path, 7), make(tmp_path, 1000)
    strangers = [make(tmp_path, 1, "b"), make(tmp_path, 2, whole=False)]
    store = DirectoryStore(tmp_path)
    assert expire(store, "a", 1, print) == [older.name, old.name]
    assert sorted(tmp_path.iterdir()) == sorted([new, *strangers])
    assert expire(store, "a", 1, print) == []
    assert expire(store, "c", 1, print) == []


class Guarded(DirectoryStore):
    """One from which some folders may not be removed."""

    def delete(self, name: str) -> None:
        if (self.root / "guarded").exists():
            raise PermissionError(f"{self}: it is guarded")
        super().delete(name)

    def below(self, folder: str) -> "Guarded":
        return Guarded(self.root / folder)


def test_one_that_can_t_be_removed_is_told_and_the_others_are(tmp_path: Path) -> None:
    older, old, _ = (make(tmp_path, gid) for gid in (1, 2, 3))
    (older / "guarded").touch()
    said: list[str] = []
    assert expire(Guarded(tmp_path), "a", 1, said.append) == [old.name]
    assert said == [f"{older.name} could not be removed: {older}: it is guarded"]


def test_schedules_with_one_folder_remove_nothing_of_each_other(tmp_path: Path) -> None:
    nightly = [make(tmp_path, gid, series="nightly") for gid in (2, 20, 200)]
    hourly = [make(tmp_path, gid, series="hourly") for gid in (3, 30, 300)]
    by_hand = make(tmp_path, 1)
    store = DirectoryStore(tmp_path)
    assert expire(store, "a", 1, print, "hourly") == [by_hand.name, hourly[0].name, hourly[1].name]
    by_hand = make(tmp_path, 4000)
    assert expire(store, "a", 1, print) == []
    assert sorted(tmp_path.iterdir()) == sorted([*nightly, hourly[2], by_hand])


def test_a_damaged_one_is_told_and_in_nobody_s_way(tmp_path: Path) -> None:
    damaged, old, _ = (make(tmp_path, gid) for gid in (1, 2, 3))
    (damaged / "manifest.json").write_text("{")
    said: list[str] = []
    assert expire(DirectoryStore(tmp_path), "a", 1, said.append) == [old.name]
    assert damaged.exists()
    assert [line.partition(":")[0] for line in said] == [
        f"{damaged.name} is damaged, and stays as it is"
    ]
