"""Whatever ends the process, fills the disk or changes a byte: the last good checkpoint is found, the rest named."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nearpeak.errors import SettingError, StorageError
from nearpeak.train import durable, manifest, storage
from nearpeak.train.durable import FileRecord, WriterName, WritingLock, record_files, size_text
from nearpeak.train.storage import CheckpointFolder, Position, hand_in, refuse, wait_published


def position(step: int, **changed: Any) -> Position:
    return Position(**{"step": step, "cursor": 8 * step, "global_batch": 8, **changed})


def fill(folder: Path, content: bytes = b"weights" * 100) -> dict[str, FileRecord]:
    (folder / "state.bin").write_bytes(content)
    (folder / "more").mkdir()
    (folder / "more" / "a.json").write_text("{}")
    return record_files(folder)


def publish(folder: CheckpointFolder, *steps: int) -> list[storage.Checkpoint]:
    return [folder.publish(position(step), fill) for step in steps]


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "out")


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.root.iterdir())


def dead_pid() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


# -- publishing --------------------------------------------------------------------------------------------------------


def test_published_is_found_whole(folder: CheckpointFolder) -> None:
    publish(folder, 1, 2)
    found = folder.newest()
    assert found.checkpoint is not None
    assert found.skipped == []
    assert (found.checkpoint.step, found.checkpoint.status) == (2, "verified")
    stated = found.checkpoint.manifest
    assert stated is not None
    assert (stated.cursor, stated.global_batch, stated.ranks, stated.serial) == (16, 8, 1, 2)
    assert sorted(stated.files) == ["more/a.json", "state.bin"]
    assert stated.bytes == 702
    assert set(stated.versions) == {"python", "nearpeak"}
    assert names(folder) == ["step-000000001", "step-000000002"]


def test_order_of_what_reaches_the_disk(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, their folders, the manifest, its folder, the rename, the parent: any other order can lose a checkpoint."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def noted_fsync(descriptor: int) -> None:
        events.append(name_of(descriptor))
        fsync(descriptor)

    def noted_rename(old: Any, new: Any) -> None:
        events.append(f"→ {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    draft = folder.begin(7)
    draft.commit(position(7), fill(draft.path))
    expected = ["a.json", "state.bin", "more", draft.name, "manifest.json", draft.name, "→ step-000000007", "out"]
    assert events == expected


def test_nothing_is_ever_replaced(folder: CheckpointFolder) -> None:
    first, second = publish(folder, 5, 5)
    assert (first.path.name, second.path.name) == ("step-000000005", "step-000000005.1")
    found = folder.newest().checkpoint
    assert found is not None
    assert found.path == second.path


@pytest.mark.parametrize("name", ["../up", "/etc/x", "", "manifest.json"])
def test_names_stay_inside(folder: CheckpointFolder, name: str) -> None:
    draft = folder.begin(1)
    with pytest.raises(SettingError, match="inside the checkpoint"):
        draft.commit(position(1), {name: FileRecord(0, "")})
    assert names(folder) == []


def test_what_is_not_json_is_refused(folder: CheckpointFolder) -> None:
    with pytest.raises(SettingError, match="must be JSON"):
        folder.publish(position(1, extra={"x": float("nan")}), fill)
    with pytest.raises(SettingError, match="must be JSON"):
        folder.publish(position(1, extra={"x": object()}), fill)
    assert names(folder) == []


def test_a_record_that_does_not_fit_its_file_is_not_published(folder: CheckpointFolder) -> None:
    draft = folder.begin(1)
    records = fill(draft.path)
    (draft.path / "state.bin").write_bytes(b"")
    with pytest.raises(StorageError, match=r"nothing was published: state.bin was cut: it has 0 bytes of 700"):
        draft.commit(position(1), records)
    assert names(folder) == []


def test_a_draft_ends_once(folder: CheckpointFolder) -> None:
    draft = folder.begin(1)
    draft.commit(position(1), fill(draft.path))
    draft.abort()
    assert names(folder) == ["step-000000001"]
    with pytest.raises(StorageError, match="committed or aborted before"):
        draft.commit(position(1), {})


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_error_of_the_writer_leaves_nothing(folder: CheckpointFolder, error: BaseException) -> None:
    publish(folder, 1)

    def fails(path: Path) -> dict[str, FileRecord]:
        fill(path)
        raise error

    with pytest.raises(type(error)):
        folder.publish(position(2), fails)
    assert names(folder) == ["step-000000001"]


# -- disks that refuse -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(path: Path, *options: str) -> Iterator[None]:
    """A file system of our own at `path`; skips where that is not allowed."""
    path.mkdir()
    if os.getuid() != 0 or subprocess.run(["mount", *options, str(path)], capture_output=True, check=False).returncode:
        pytest.skip("needs to mount file systems")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_is_seen_before_the_first_byte(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none"):
        folder = CheckpointFolder(tmp_path / "disk" / "out")
        publish(folder, 1)
        with pytest.raises(StorageError, match=r"needs 9.0 MB, 4.\d MB are free. Nothing was written") as caught:
            folder.begin(2, bytes_needed=9_000_000)
        assert f"nearpeak checkpoints {folder.root} --prune 1" in str(caught.value)
        assert names(folder) == ["step-000000001"]


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none"):
        folder = CheckpointFolder(tmp_path / "disk" / "out")
        publish(folder, 1)
        with pytest.raises(StorageError, match=r"the disk is full \(writing step 2\)"):
            folder.publish(position(2), lambda path: fill(path, b"x" * 9_000_000))
        assert names(folder) == ["step-000000001"]
        found = folder.newest().checkpoint
        assert found is not None
        assert (found.step, found.status) == (1, "verified")
        publish(folder, 3)


def test_a_read_only_file_system(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none"):
        folder = CheckpointFolder(tmp_path / "disk" / "out")
        publish(folder, 1, 2)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(StorageError, match=r"read-only .* Mount it writable or save elsewhere"):
            folder.begin(3)
        with pytest.raises(StorageError, match=r"read-only .*deleting step-000000001"):
            folder.prune(1)
        found = folder.newest().checkpoint
        assert found is not None
        assert found.step == 2


FAILURES = [
    (errno.ENOSPC, "the disk is full"),
    (errno.EDQUOT, "the quota is used up"),
    (errno.EROFS, "read-only"),
    (errno.EACCES, "no permission"),
    (errno.EIO, "Input/output error"),
]


@pytest.mark.parametrize(("code", "told"), FAILURES)
@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
def test_any_call_may_fail(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, call: str, code: int, told: str
) -> None:
    publish(folder, 1)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        with pytest.raises(StorageError, match=told) as caught:
            folder.publish(position(2), fill)
    assert isinstance(caught.value.__cause__, OSError)
    assert names(folder) == ["step-000000001"]
    publish(folder, 3)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="where a folder is needed"):
            CheckpointFolder(root).begin(1)
        with pytest.raises(StorageError, match="where a folder is needed"):
            CheckpointFolder(root).newest()


def test_a_root_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "none")
    assert folder.newest() == storage.Found(None, [])
    assert folder.clear_orphans() == []
    assert not folder.root.exists()


def test_file_systems_that_cannot_sync_folders(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def picky(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "not for folders")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", picky)
    publish(folder, 1)
    assert folder.newest().checkpoint is not None


# -- damage ------------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    with open(path / "state.bin", "r+b") as file:
        file.truncate(100)


def flip(path: Path) -> None:
    content = bytearray((path / "state.bin").read_bytes())
    content[350] ^= 4
    (path / "state.bin").write_bytes(content)


def change_cursor(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"cursor": 24', '"cursor": 25'))


DAMAGES = {
    "truncated file": (cut, "state.bin was cut: it has 100 bytes of 700"),
    "flipped byte": (flip, r"state.bin has changed since it was written: sha256 \w{12}… instead of \w{12}…"),
    "longer file": (lambda path: (path / "state.bin").write_bytes(b"x" * 800), "state.bin has 800 bytes of 700"),
    "half a folder": (lambda path: (path / "more" / "a.json").unlink(), "more/a.json is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "no manifest.json: it was not written to its end"),
    "empty manifest": (lambda path: (path / "manifest.json").write_text(""), "manifest.json is damaged"),
    "cut manifest": (lambda path: os.truncate(path / "manifest.json", 80), "manifest.json is damaged"),
    "list for a manifest": (lambda path: (path / "manifest.json").write_text("[1]"), "manifest.json is damaged"),
    "changed cursor": (change_cursor, "manifest.json is damaged: its content is not what was written"),
    "a folder for a file": (
        lambda path: ((path / "state.bin").unlink(), (path / "state.bin").mkdir()),
        "state.bin (has|was|cannot)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_the_former_taken(folder: CheckpointFolder, damage: str) -> None:
    _, second, third = publish(folder, 1, 2, 3)
    act, why = DAMAGES[damage]
    act(third.path)
    found = folder.newest()
    assert found.checkpoint is not None
    assert found.checkpoint.path == second.path
    assert [each.path for each in found.skipped] == [third.path]
    assert re.search(why, found.skipped[0].why)
    assert [each.status for each in folder.checkpoints(verify=True)].count("broken") == 1


def test_every_byte_counts(folder: CheckpointFolder) -> None:
    """Any flipped bit in any file is found; in the manifest, any that changes what it says."""
    (checkpoint,) = publish(folder, 1)
    draw = random.Random(0)
    for path in (checkpoint.path / "state.bin", checkpoint.path / "manifest.json"):
        before = path.read_bytes()
        for place in draw.sample(range(len(before)), 60):
            changed = bytearray(before)
            changed[place] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            if path.name != "manifest.json" or _says(bytes(changed)) != json.loads(before):
                assert folder.newest().checkpoint is None, (path.name, place)
        path.write_bytes(before)
    assert folder.newest().checkpoint is not None


def _says(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_all_broken(folder: CheckpointFolder) -> None:
    for checkpoint in publish(folder, 1, 2):
        cut(checkpoint.path)
    found = folder.newest()
    assert found.checkpoint is None
    assert [each.path.name for each in found.skipped] == ["step-000000002", "step-000000001"]


def test_old_damage_is_no_concern(folder: CheckpointFolder) -> None:
    first, _ = publish(folder, 1, 2)
    cut(first.path)
    assert folder.newest().skipped == []


def test_a_later_schema_says_to_upgrade(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "SCHEMA", 2)
        publish(folder, 1)
    (skipped,) = folder.newest().skipped
    assert "whose schema 2 this version" in skipped.why
    assert "upgrade nearpeak" in skipped.why


def test_a_clock_that_is_set_back(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the time of files nor the time in the manifest decides which is newest, kept or cleared."""
    first, second, third = publish(folder, 1, 2, 3)
    for checkpoint, age_s in ((first, -9e8), (second, 0), (third, 9e8)):
        for path in (checkpoint.path, *checkpoint.path.rglob("*")):
            os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert folder.newest().checkpoint == third

    class Past(manifest.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(1999, 1, 1, tzinfo=tz)

    monkeypatch.setattr(manifest, "datetime", Past)
    (fourth,) = publish(folder, 4)
    assert fourth.manifest is not None
    assert fourth.manifest.saved_at.startswith("1999")
    assert folder.newest().checkpoint == fourth
    assert folder.prune(2) == [first.path, second.path]


def test_a_later_training_in_the_same_folder_wins(folder: CheckpointFolder) -> None:
    """Going on from an older step, or starting afresh: its saves are the newest, though their steps are lower."""
    publish(folder, 100, 200, 20)
    found = folder.newest()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    folder.prune(2)
    assert names(folder) == ["step-000000020", "step-000000200"]


# -- retention ---------------------------------------------------------------------------------------------------------


def test_prune_keeps_the_newest(folder: CheckpointFolder) -> None:
    publish(folder, 1, 2, 3, 4)
    assert [path.name for path in folder.prune(2)] == ["step-000000001", "step-000000002"]
    assert names(folder) == ["step-000000003", "step-000000004"]
    assert folder.prune(2) == []
    with pytest.raises(SettingError, match="keep=0"):
        folder.prune(0)


def test_prune_never_deletes_the_last_verified(folder: CheckpointFolder) -> None:
    first, second, third, fourth = publish(folder, 1, 2, 3, 4)
    flip(third.path)
    flip(fourth.path)
    reader = CheckpointFolder(folder.root)  # has written none of them and must read
    assert reader.prune(1) == [first.path]
    left = folder.newest().checkpoint
    assert left is not None
    assert left.path == second.path
    assert reader.prune(1, broken=True) == [fourth.path, third.path]
    assert names(folder) == [second.path.name]


def test_prune_with_nothing_sound_deletes_nothing(folder: CheckpointFolder) -> None:
    for checkpoint in publish(folder, 1, 2, 3):
        flip(checkpoint.path)
    assert CheckpointFolder(folder.root).prune(1, broken=True) == []
    assert len(names(folder)) == 3


def test_broken_ones_do_not_count_and_go_only_when_asked(folder: CheckpointFolder) -> None:
    _, second, third, _ = publish(folder, 1, 2, 3, 4)
    cut(third.path)
    assert [path.name for path in folder.prune(2)] == ["step-000000001"]
    assert second.path.exists()
    assert third.path.exists()
    assert folder.prune(2, broken=True) == [third.path]


def test_protected_ones_stay(folder: CheckpointFolder) -> None:
    first, _, _ = publish(folder, 1, 2, 3)
    assert [path.name for path in folder.prune(1, protect=[first.path])] == ["step-000000002"]


def test_a_kill_while_pruning_leaves_no_half_checkpoint(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.prune(1)
    assert [each.step for each in folder.checkpoints(verify=True)] == [2]
    assert len(folder.clear_orphans()) == 1
    assert names(folder) == ["step-000000002"]


def _interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


# -- orphans -----------------------------------------------------------------------------------------------------------


def test_a_living_writer_is_left_alone(folder: CheckpointFolder) -> None:
    draft = folder.begin(1)
    (draft.path / "x").write_text("")
    assert folder.clear_orphans() == []
    assert draft.path.exists()
    draft.abort()
    assert names(folder) == []


def orphan(folder: CheckpointFolder, writer: WriterName, *, locked: bool | None) -> Path:
    path = folder.root / f".tmp-000000009{writer}0"
    path.mkdir(parents=True)
    (path / "half.bin").write_bytes(b"x")
    if locked is not None:
        path.with_name(path.name + ".lock").write_bytes(WritingLock.HELD if locked else b"")
    return path


@pytest.mark.parametrize("locked", [True, False, None])
def test_dead_writers_of_this_machine_are_cleared(folder: CheckpointFolder, locked: bool | None) -> None:
    own = WriterName.own()
    paths = [
        orphan(folder, WriterName(own.system, dead_pid(), own.started), locked=locked),
        orphan(
            folder, WriterName(own.system, own.pid, own.started - 1), locked=locked
        ),  # the process id was used again
    ]
    assert sorted(folder.clear_orphans()) == sorted(paths)
    assert names(folder) == []


def test_writers_of_other_machines_are_known_by_their_lock(folder: CheckpointFolder) -> None:
    gone = orphan(folder, WriterName("0" * 12, 1, 1), locked=True)
    unknown = orphan(folder, WriterName("0" * 12, 1, 2), locked=False)  # a file system without locks
    living = folder.root / f".tmp-000000009{WriterName('0' * 12, 1, 3)}0"
    lock = WritingLock(living.with_name(living.name + ".lock"))
    living.mkdir()
    assert folder.clear_orphans() == [gone]
    assert unknown.exists()
    assert living.exists()
    lock.release()
    assert folder.clear_orphans() == [living]


def test_a_zombie_is_dead(folder: CheckpointFolder) -> None:
    child = subprocess.Popen(["sleep", "60"])
    started = durable._started(child.pid)
    assert started is not None
    writer = WriterName(WriterName.own().system, child.pid, started)
    assert writer.is_alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not writer.is_alive()
    child.wait()
    assert not writer.is_alive()


def test_names_that_are_not_ours_are_left(folder: CheckpointFolder) -> None:
    publish(folder, 1)
    (folder.root / ".tmp-mine").mkdir()
    (folder.root / ".tmp-mine.lock").write_text("")
    (folder.root / "step-one").mkdir()
    (folder.root / "step-000000009").write_text("a file")
    assert folder.clear_orphans() == []
    assert [each.step for each in folder.checkpoints()] == [1]


# -- kills -------------------------------------------------------------------------------------------------------------

WRITER = """
    import hashlib, os, sys
    from pathlib import Path
    from nearpeak.train.storage import CheckpointFolder, FileRecord, Position

    folder = CheckpointFolder(Path(sys.argv[1]))
    folder.clear_orphans()
    newest = folder.newest().checkpoint
    step = newest.step if newest else 0

    def write(path):
        content = os.urandom(300_000)
        (path / "a").write_bytes(content)
        (path / "b").write_bytes(content[::-1])
        both = (("a", content), ("b", content[::-1]))
        return {name: FileRecord(300_000, hashlib.sha256(bytes_).hexdigest()) for name, bytes_ in both}

    while True:
        step += 1
        folder.publish(Position(step=step, cursor=step, global_batch=1), write, bytes_needed=600_000)
        print(step, flush=True)
        folder.prune(2)
"""


def test_kills_at_any_moment(folder: CheckpointFolder) -> None:
    """SIGKILL while a child publishes and prunes: what was announced is always there, whole, and no junk stays."""
    draw, announced = random.Random(7), 0
    for _ in range(15):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(folder.root)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(draw.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        announced = int((first + child.stdout.read()).split()[-1])
        child.wait()
        child.stdout.close()
        found = folder.newest()
        assert found.skipped == []
        assert found.checkpoint is not None
        assert found.checkpoint.step in (announced, announced + 1)
        assert all(each.status == "verified" for each in folder.checkpoints(verify=True))
    folder.clear_orphans()
    assert all(name.startswith("step-") for name in names(folder))


# -- several writers ---------------------------------------------------------------------------------------------------


def test_two_writers_in_one_folder(folder: CheckpointFolder) -> None:
    """Two trainings by mistake: each save is whole, nothing is overwritten, and the newest survives their pruning."""
    errors: list[BaseException] = []

    def train() -> None:
        own = CheckpointFolder(folder.root)
        try:
            for step in range(1, 16):
                own.publish(position(step), fill)
                own.clear_orphans()
                own.prune(2)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    writers = [threading.Thread(target=train) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert errors == []
    left = folder.checkpoints(verify=True)
    assert left[0].step == 15
    assert {each.status for each in left} == {"verified"}


def test_ranks_hand_in_their_parts(folder: CheckpointFolder) -> None:
    draft = folder.begin(3)

    def other(rank: int) -> None:
        path = CheckpointFolder(folder.root).join(draft.name)
        (path / f"r{rank}").write_bytes(b"abc")
        hand_in(path, rank, {f"r{rank}": FileRecord(3, hashlib.sha256(b"abc").hexdigest())})
        wait_published(path, timeout_s=5)

    threads = [threading.Thread(target=other, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    records = draft.gather([1, 2], timeout_s=5)
    checkpoint = draft.commit(position(3, ranks=3), records)
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in checkpoint.path.iterdir()) == ["manifest.json", "r1", "r2"]
    assert folder.newest().checkpoint is not None


def test_a_rank_that_died_hangs_nobody(folder: CheckpointFolder) -> None:
    draft = folder.begin(3)
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"rank 1, 2 wrote nothing in 0.2 s: not saved"):
        draft.gather([1, 2], timeout_s=0.2)
    assert time.monotonic() - start < 2
    with pytest.raises(StorageError, match="did not publish the checkpoint within 0.1 s"):
        wait_published(draft.path, timeout_s=0.1)
    draft.abort()


def test_a_rank_that_could_not_save_says_so(folder: CheckpointFolder) -> None:
    draft = folder.begin(3)
    refuse(draft.path, 1, "the disk is full")
    with pytest.raises(StorageError, match="rank 1 could not save: the disk is full"):
        draft.gather([1], timeout_s=5)
    draft.abort()
    refuse(draft.path, 1, "nobody is there any more")


def test_a_rank_on_another_disk(folder: CheckpointFolder, tmp_path: Path) -> None:
    draft = folder.begin(3)
    with pytest.raises(StorageError, match="a folder that all of them share"):
        CheckpointFolder(tmp_path / "elsewhere").join(draft.name)
    draft.abort()


# -- small things ------------------------------------------------------------------------------------------------------


def test_sizes_read_well() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 1_234_567, 9e8, 2.5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "900.0 MB",
        "2.5 TB",
    ]


def test_other_names(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, prefix="checkpoint-", digits=0)
    publish(folder, 100)
    assert names(folder) == ["checkpoint-100"]
    found = folder.newest().checkpoint
    assert found is not None
    assert found.step == 100
