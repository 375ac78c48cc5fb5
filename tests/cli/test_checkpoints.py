"""What `nearpeak checkpoints` says and deletes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearpeak.cli.main import main
from nearpeak.train.durable import FileRecord, record_files
from nearpeak.train.storage import CheckpointFolder, Position


def fill(folder: Path) -> dict[str, FileRecord]:
    (folder / "state.bin").write_bytes(b"weights" * 200_000)
    return record_files(folder)


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    saved = CheckpointFolder(tmp_path / "out")
    for step in (10, 20, 30):
        saved.publish(Position(step=step, cursor=32 * step, global_batch=32, ranks=2), fill)
    return saved


def flip(folder: CheckpointFolder, step: int) -> None:
    path = folder.root / f"step-{step:09d}" / "state.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


def steps(folder: CheckpointFolder) -> list[int]:
    return [each.step for each in folder.checkpoints()]


def test_lists_geometry_and_cursor(folder: CheckpointFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(folder.root)]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.startswith("step-")]
    assert [row[0] for row in rows] == ["step-000000030", "step-000000020", "step-000000010"]
    assert rows[0][1:6] == ["960", "32", "2", "1.4", "MB"]
    assert rows[0][-1] == "unverified"
    assert max(map(len, out.splitlines())) <= 80


def test_verify_finds_what_sizes_hide(folder: CheckpointFolder, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder, 30)
    assert main(["checkpoints", str(folder.root)]) == 0
    capsys.readouterr()
    assert main(["checkpoints", str(folder.root), "--verify"]) == 1
    out = capsys.readouterr().out
    assert "step-000000030 is broken" in out
    assert "state.bin has changed since it was written" in " ".join(out.split())
    assert out.count(" verified") == 2


def test_json(folder: CheckpointFolder, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder, 30)
    assert main(["checkpoints", str(folder.root), "--verify", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema", "folder", "newest", "checkpoints", "pruned"]
    assert document["schema"] == 1
    assert document["newest"].endswith("step-000000020")
    broken, newest, _ = document["checkpoints"]
    assert (broken["state"], newest["state"], newest["step"], newest["why"]) == ("broken", "verified", 20, None)
    assert newest["manifest"]["cursor"] == 640
    assert newest["bytes"] == 1_400_000


def test_prune_asks(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = []

    def answer(text: str, **_: Any) -> bool:
        answers.append(text)
        return len(answers) > 1

    monkeypatch.setattr("click.confirm", answer)
    assert main(["checkpoints", str(folder.root), "--prune", "1"]) == 130
    assert steps(folder) == [30, 20, 10]
    assert main(["checkpoints", str(folder.root), "--prune", "1"]) == 0
    assert steps(folder) == [30]
    assert answers == ["Delete 2 of 3 checkpoints and keep the newest 1 that is whole?"] * 2
    assert capsys.readouterr().err.count("deleted step-") == 2


def test_prune_without_asking(folder: CheckpointFolder) -> None:
    assert main(["checkpoints", str(folder.root), "--prune", "2", "--yes"]) == 0
    assert steps(folder) == [30, 20]
    assert main(["checkpoints", str(folder.root), "--prune", "2"]) == 0  # nothing to do, nothing to ask


def test_prune_keeps_what_verifies(folder: CheckpointFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest is broken in a way that only reading shows: the one before it is the one to keep."""
    flip(folder, 30)
    assert main(["checkpoints", str(folder.root), "--prune", "1", "--yes", "--json"]) == 0
    assert [Path(path).name for path in json.loads(capsys.readouterr().out)["pruned"]] == ["step-000000010"]
    assert steps(folder) == [30, 20]
    (folder.root / "step-000000030" / "state.bin").unlink()
    assert main(["checkpoints", str(folder.root), "--prune", "1", "--yes", "--broken"]) == 0
    assert steps(folder) == [20]


def test_folders_of_the_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoints go by its names; one that it wrote without us is neither broken nor ours to delete."""
    saved = CheckpointFolder(tmp_path, prefix="checkpoint-", digits=0)
    for step in (5, 15):
        saved.publish(Position(step=step, cursor=step, global_batch=1), fill)
    (tmp_path / "checkpoint-20").mkdir()
    assert main(["checkpoints", str(tmp_path), "--prune", "1", "--yes", "--broken"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-15", "checkpoint-20"]
    assert "foreign" in capsys.readouterr().out


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "no checkpoints" in capsys.readouterr().out
    assert main(["checkpoints", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("options", [["--prune", "0"], ["--yes"], ["--broken"]])
def test_bad_usage(folder: CheckpointFolder, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(folder.root), *options]) == 2
    assert steps(folder) == [30, 20, 10]
