"""`nearpeak diagnose` from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearpeak.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))  # tests are no package
sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))
from samples import record_run
from traces import kernel, launch, loop, step, write


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "one.json.gz", loop(8))


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Four ranks, two steps; the last comes late to an exchange."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(4):
        events = []
        for number, begin in enumerate((1000.0, 2000.0)):
            arrival = begin + (700 if rank == 3 else 200)
            events += [step(number, begin, 1000.0), launch(arrival - 10, 4, 2 * number)]
            events += [kernel("ncclDevKernel_AllReduce()", arrival, begin + 900 - arrival, 2 * number, 9)]
        write(folder / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": 4})
    return folder


def test_a_trace_on_the_terminal(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "The device waits for its input in 30 % of the step." in text
    assert max(map(len, text.splitlines())) <= 80 or str(trace) in text.splitlines()[0]


def test_as_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(trace), "--json", "--output", str(tmp_path / "out.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "out.json").read_text())
    assert (document["schema"], document["source"], document["steps"]) == (1, str(trace), 8)
    assert document["breakdown"]["compute"] == 30 and document["breakdown"]["idle"]["input"] == 30
    assert document["ranks"] == [document["breakdown"]]
    assert document["findings"][0]["kind"] == "input" and document["findings"][0]["gain"]["high"] == pytest.approx(0.3)
    assert document["trace"]["kernels_per_step"] == 2
    after = document["findings"][0]["predicted_step_ms"]
    assert after["low"] == pytest.approx(0.07) and after["low"] < after["likely"] < after["high"] < 0.1


def test_a_folder_of_ranks(ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(ranks), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["ranks"]) == 4
    first = document["findings"][0]
    assert first["kind"] == "straggler" and "rank 3 (1.5 ms a step)" in first["title"]
    assert [each["cost_ms"] for each in document["trace"]["ranks"]] == [0, 0, 0, 1.5]


def test_a_page(ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["diagnose", str(ranks), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "What each device did" in text and "rank 3" in text and len(text) < 1_000_000
    assert main(["diagnose", str(ranks), "--html", str(page)]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path / "run", steps=60)
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] > 0


@pytest.mark.parametrize("content", ["", "hello", "{}", '{"traceEvents": []}'])
def test_what_is_nothing_is_refused(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.json").write_text(content)
    assert main(["diagnose", str(tmp_path / "odd.json")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and ("profiler's trace" in error or "no event" in error)


def test_a_missing_path_and_a_mixture(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path / "absent")]) == 1
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("x")
    assert main(["diagnose", str(trace), str(tmp_path / "notes.txt")]) == 1
    assert "one by one" in capsys.readouterr().err
    assert main(["diagnose"]) == 2
