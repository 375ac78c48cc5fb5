"""A model folder appears whole or not at all, and the former one outlives everything."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearpeak.errors import SettingError
from nearpeak.tasks.text_classification import saving
from nearpeak.tasks.text_classification.saving import Publisher, SaveError, replace_file


def fill(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)


def fail_halfway(publisher: Publisher, error: BaseException) -> None:
    with publisher.publish() as folder:
        fill(folder, "half")
        raise error


def content_of(folder: Path) -> str:
    return (folder / "config.json").read_text()


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    found = Publisher(tmp_path / "model", overwrite=False)
    yield found
    found.close()


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.name != "model")


def test_publishing_once_and_again(publisher: Publisher, tmp_path: Path) -> None:
    for content in ("first", "second"):
        with publisher.publish() as folder:
            fill(folder, content)
        assert content_of(tmp_path / "model") == content
    publisher.close()
    assert leftovers(tmp_path) == []


def test_two_renames_where_folders_cannot_be_exchanged(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_exchange", lambda first, second: False)
    test_publishing_once_and_again(publisher, tmp_path)


def test_a_subfolder_beside_the_model(publisher: Publisher, tmp_path: Path) -> None:
    with publisher.publish() as folder:
        fill(folder, "best")
    with publisher.publish("interrupted") as folder:
        fill(folder, "last")
    assert (content_of(tmp_path / "model"), content_of(tmp_path / "model" / "interrupted")) == ("best", "last")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["full", "quota", "safetensors"],
)
def test_a_full_disk_leaves_the_former_model_whole(publisher: Publisher, tmp_path: Path, error: Exception) -> None:
    with publisher.publish() as folder:
        fill(folder, "former")
    with pytest.raises(SaveError, match="the disk is full. The model saved before in .* is whole. Make room"):
        fail_halfway(publisher, error)
    assert content_of(tmp_path / "model") == "former"
    with publisher.publish() as folder:
        fill(folder, "later")
    assert content_of(tmp_path / "model") == "later"


def test_a_full_disk_before_anything_was_saved(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="No model had been saved before"), publisher.publish():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not (tmp_path / "model").exists()


def test_a_sync_that_fails_publishes_nothing(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SaveError, match="Input/output error"), publisher.publish() as folder:
        fill(folder, "unsafe")
    assert not (tmp_path / "model").exists()


def test_other_errors_and_interrupts_pass_through(publisher: Publisher, tmp_path: Path) -> None:
    for error in (ValueError("of the writer's own"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail_halfway(publisher, error)
    assert not (tmp_path / "model").exists()


def test_a_really_full_disk(tmp_path: Path) -> None:
    """A small file system of its own, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        not shutil.which("mount")
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        _fill_the_disk(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _fill_the_disk(disk: Path) -> None:
    import torch
    from safetensors.torch import save_file

    publisher = Publisher(disk / "model", overwrite=False)
    with pytest.raises(SaveError, match="1 MB are free, the model takes 400 MB"):
        publisher.check_space(400_000_000)
    with publisher.publish() as folder:
        fill(folder, "former")
    with pytest.raises(SaveError, match="the disk is full"), publisher.publish() as folder:
        save_file({"weight": torch.zeros(1_000_000)}, folder / "model.safetensors")
    with pytest.raises(SaveError, match="could not be written: No space left"):
        replace_file(disk / "model" / "metrics.json", b"x" * 2_000_000)
    assert content_of(disk / "model") == "former"
    assert sorted(path.name for path in (disk / "model").iterdir()) == ["config.json"]
    publisher.close()


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_a_killed_run_leaves_a_whole_model_and_the_next_run_mends_the_rest(tmp_path: Path, moment: str) -> None:
    program = f"""
        import os, sys
        from pathlib import Path
        from nearpeak.tasks.text_classification import saving
        publisher = saving.Publisher({str(tmp_path / "model")!r}, overwrite=False)
        with publisher.publish() as folder:
            (folder / "config.json").write_text("former")
        if {moment!r} == "renaming":
            saving._exchange = lambda first, second: False
            rename = Path.rename
            def once(self, target):
                rename(self, target)
                os._exit(9)
            Path.rename = once
        with publisher.publish() as folder:
            (folder / "config.json").write_text("half")
            if {moment!r} == "writing":
                os._exit(9)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert killed.returncode == 9
    publisher = Publisher(tmp_path / "model", overwrite=True)
    assert content_of(tmp_path / "model") == "former"
    publisher.close()
    assert leftovers(tmp_path) == []


def test_an_existing_folder_is_refused_without_force(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    Publisher(tmp_path / "model", overwrite=False).close()  # an empty one does no harm
    fill(tmp_path / "model", "former")
    with pytest.raises(SettingError, match="exists and is not empty. .*--force"):
        Publisher(tmp_path / "model", overwrite=False)
    Publisher(tmp_path / "model", overwrite=True).close()
    assert content_of(tmp_path / "model") == "former"


def test_force_replaces_models_only(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "summer.jpg").write_text("irreplaceable")
    with pytest.raises(SettingError, match="something other than a model"):
        Publisher(tmp_path / "photos", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file"):
        Publisher(tmp_path / "file", overwrite=True)


def test_two_runs_into_one_folder(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="another run is writing there"):
        Publisher(tmp_path / "model", overwrite=False)
    publisher.close()
    Publisher(tmp_path / "model", overwrite=False).close()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert (path.read_bytes(), leftovers(tmp_path)) == (b"two", ["metrics.json"])
    with pytest.raises(SaveError, match="could not be written"):
        replace_file(tmp_path / "nowhere" / "x", b"")
