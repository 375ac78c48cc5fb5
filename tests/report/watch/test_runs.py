from __future__ import annotations

import os
from pathlib import Path

from nearpeak.recording import RecordingWriter, RowWriter, StepRecord, describe_run
from nearpeak.report.watch.runs import RunFinder


def test_a_run_is_found_by_the_recording_that_its_process_holds_open(tmp_path: Path) -> None:
    folder = tmp_path / "my-run"
    RecordingWriter(folder, describe_run()).close()
    rows = RowWriter(folder)
    rows.write([StepRecord(step=step, wall_s=0.5, input_ms=300.0, backward_ms=200.0) for step in range(4)])
    proc = tmp_path / "proc"
    (proc / "4711" / "fd").mkdir(parents=True)
    (proc / "4711" / "fd" / "3").symlink_to(folder / "recording.sqlite")
    (proc / "self").mkdir()
    finder = RunFinder(proc)
    finder.look()
    (line,) = finder.lines()
    assert (line.name, line.pid, line.step, line.steps_per_s) == ("my-run", 4711, 3, 2.0)
    assert line.shares == (("input", 0.6), ("backward", 0.4))
    rows.close()
    os.rename(proc / "4711", tmp_path / "gone")
    finder.look()
    assert finder.lines() == []
