from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from histories import Recorder

from nearpeak.predict.allocator_settings import AllocatorSettings
from nearpeak.predict.held import SnapshotReport, explain
from nearpeak.predict.sites import BEFORE_RECORDING, site_of
from nearpeak.predict.snapshot import read_snapshot

MIB = 1 << 20
MODEL = [{"filename": "/home/me/project/model.py", "line": 12, "name": "attend"}]
LOGS = [{"filename": "/home/me/project/train.py", "line": 40, "name": "remember_loss"}]


def test_peak_names_its_holders(tmp_path: Path) -> None:
    recorder = Recorder(AllocatorSettings())
    recorder.malloc(64 * MIB)
    recorder.events.clear()
    for _ in range(3):
        recorder.malloc(30 * MIB, frames=MODEL)
    recorder.free(3)
    recorder.malloc(10 * MIB, frames=LOGS)
    report = _explained(tmp_path, recorder)
    assert (report.peak_allocated, report.peak_reserved) == (154 * MIB, 154 * MIB)
    assert [(h.site, h.bytes, h.blocks) for h in report.holders] == [
        ("attend (project/model.py:12)", 90 * MIB, 3),
        (BEFORE_RECORDING, 64 * MIB, 1),
    ]
    assert report.peak_after_s == 5 * 10 / 1e6  # each allocation is preceded by that of its segment


def test_what_grows_in_every_part_of_the_history_is_a_leak(tmp_path: Path) -> None:
    recorder = Recorder(AllocatorSettings())
    recorder.malloc(40 * MIB, frames=MODEL)
    for _ in range(24):
        recorder.malloc(MIB, frames=LOGS)
        recorder.malloc(80 * MIB, frames=MODEL)
        recorder.free(len(recorder.live) - 1)
    report = _explained(tmp_path, recorder)
    (leak,) = report.leaks
    assert leak.site == "remember_loss (project/train.py:40)"
    assert leak.bytes >= 15 * MIB


def test_steady_use_is_no_leak(tmp_path: Path) -> None:
    recorder = Recorder(AllocatorSettings())
    for _ in range(24):
        recorder.malloc(80 * MIB, frames=MODEL)
        recorder.free(len(recorder.live) - 1)
    assert _explained(tmp_path, recorder).leaks == ()


def test_fragmented_history_is_told_the_setting_that_helps(tmp_path: Path) -> None:
    recorder = Recorder(AllocatorSettings())
    for size in range(20, 60):
        recorder.malloc(size * MIB, frames=MODEL)
        recorder.free(0)
    report = _explained(tmp_path, recorder)
    assert "expandable_segments:True" in report.advice
    by_conf = {trial.conf: trial.peak_reserved for trial in report.trials}
    assert by_conf["expandable_segments:True"] < by_conf["as it was"]
    assert report.fragmentation.free_bytes == report.peak_reserved - report.peak_allocated > 0


def test_sites_and_phases_come_from_frames() -> None:
    library = {"filename": "/venv/lib/python3.12/site-packages/torch/optim/adamw.py", "line": 1, "name": "step"}
    engine = {"filename": "??", "line": 0, "name": "torch::autograd::Engine::evaluate_function(x)"}
    native = {"filename": "??", "line": 0, "name": "at::native::(anonymous namespace)::new_zeros(x)"}
    assert site_of((library, *MODEL)) == ("attend (project/model.py:12)", "optimizer")
    assert site_of((native, engine)) == ("at::native::new_zeros", "backward")
    assert site_of(tuple(MODEL))[1] == "forward"


def _explained(folder: Path, recorder: Recorder) -> SnapshotReport:
    path = folder / "snapshot.pickle"
    content: dict[str, Any] = recorder.snapshot({})
    path.write_bytes(pickle.dumps(content))
    (device,) = read_snapshot(path)
    return explain(device)
