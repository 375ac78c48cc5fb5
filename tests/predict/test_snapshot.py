from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nearpeak.errors import DataError
from nearpeak.predict.snapshot import read_snapshot


class Evil:
    """What a hostile file does when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return os.unlink, (str(self.victim),)


def test_globals_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "snapshot.pickle"
    victim.write_text("here")
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Evil(victim)]}))
    with pytest.raises(DataError, match=r"snapshot.pickle: the file asks for posix\.unlink"):
        read_snapshot(path)
    assert victim.exists()


def test_harmless_looking_globals_are_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [Path("x")]}))
    with pytest.raises(DataError, match="asks for pathlib"):
        read_snapshot(path)


def test_other_files_are_named_for_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"")
    with pytest.raises(DataError, match="an archive, such as torch.save writes"):
        read_snapshot(path)
    for content in (b"", b"a,b\n1,2\n", pickle.dumps({"segments": [], "x": 1})[:-9], b"\x80\x05\x8c\xff\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="pickle"):
            read_snapshot(path)
    for value in ([1, 2], {"segments": [{"device": 0}]}, {"segments": 3}):
        path.write_bytes(pickle.dumps(value))
        with pytest.raises(DataError, match="not a memory snapshot"):
            read_snapshot(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_snapshot(tmp_path / "none")


def test_old_snapshots_without_block_addresses_are_read(tmp_path: Path) -> None:
    history = [{"addr": 64, "real_size": 400, "frames": [{"filename": "a.py", "line": 3, "name": "f"}]}]
    blocks = [
        {"size": 512, "state": "active_allocated", "history": history},
        {"size": 1536, "state": "inactive"},
    ]
    segment = {"device": 1, "address": 64, "total_size": 2048, "stream": 0, "segment_type": "small", "blocks": blocks}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment]}))
    (device,) = read_snapshot(path)
    assert device.device == 1
    first, second = device.segments[0].blocks
    assert (first.address, first.in_use, second.address, second.in_use) == (64, True, 576, False)
    assert first.frames[0]["name"] == "f"
