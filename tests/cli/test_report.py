"""`nearpeak report` from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearpeak.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from samples import record_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record_run(tmp_path / "run", steps=60)
    return tmp_path / "run"


def test_the_verdict_on_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("python train.py · finished, exit code 0\n")
    assert "waiting for data" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_newest_run_is_taken_where_none_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["report"]) == 1
    assert "no recording in it" in capsys.readouterr().err
    record_run(Path("nearpeak-runs") / "one", steps=30, command=("python", "newest.py"))
    assert main(["report"]) == 0
    assert "newest.py" in capsys.readouterr().out


def test_json_has_the_promised_names(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--json", "--output", str(tmp_path / "out.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "out.json").read_text())
    assert (document["schema"], document["source"]) == (1, str(run))
    assert {"steps", "breakdown", "ranks", "findings", "folded", "unknown", "run"} <= set(document)
    assert document["run"]["setup"]["loader_workers"] == 0


def test_the_page_is_written_and_not_overwritten(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--html", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert main(["report", str(run), "--html", str(page)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", str(run), "--html", str(page), "--force"]) == 0


def test_what_cannot_be_reported_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "no such folder" in capsys.readouterr().err
    record_run(tmp_path / "other", steps=10)
    assert main(["report", str(tmp_path)]) == 1
    assert "holds 2 recordings" in capsys.readouterr().err
    assert main(["report", str(run), "--html", str(tmp_path / "no" / "page.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_device_log_is_reported_as_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, page = tmp_path / "gpu.csv", tmp_path / "page.html"
    rows = "".join(
        f"2026/03/01 10:00:{n:02}.000, 0, NVIDIA L4, {0 if n % 2 else 99} %, 20000 MiB, 23034 MiB\n" for n in range(60)
    )
    log.write_text("timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n" + rows)
    assert main(["report", str(log)]) == 0
    assert "full memory is no" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(log), "--html", str(page)]) == 0
    assert "NVIDIA L4" in page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["idle_share"] == 0.5
    assert main(["diagnose", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "idle"


def test_a_file_that_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    assert main(["report", str(tmp_path / "notes.txt")]) == 1
    assert "no readings of devices" in capsys.readouterr().err
