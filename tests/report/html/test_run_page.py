"""The page of a run: all of it is there, nothing of the user's becomes markup, and it stays small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from samples import HOSTILE, diagnosis, record_run

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.recorded import diagnose_recording
from nearpeak.hardware.reading import Device, Reading
from nearpeak.hardware.reading_store import ReadingWriter
from nearpeak.recording import Recording, RecordingWriter, RowWriter, StepRecord, describe_run
from nearpeak.recording.writer import to_json
from nearpeak.report.html.run_page import run_page

MEGABYTE = 1_000_000
STRUCTURE = "html head meta title link style body main header footer nav section article figure figcaption div span"
CONTENT = "strong p a b i small h1 h2 h3 ul ol li dl dt dd details summary code svg path script"
TABLE = "table caption thead tbody tr th td"
ALLOWED = {*STRUCTURE.split(), *CONTENT.split(), *TABLE.split()}
SECTIONS = ["Steps", "Ranks", "Throughput", "Memory", "Devices", "Code", "Learning", "Set-up", "Unknown"]


class Reader(HTMLParser):
    """Collects what a browser would make of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.headings: list[str] = []
        self.scripts = 0
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        given = dict(attrs)
        self.scripts += tag == "script" and "type" not in given
        self.fetched += [
            v for k, v in attrs if k in ("src", "href", "srcset") and v and not v.startswith(("#", "data:"))
        ]
        assert not [name for name in given if name.startswith("on")], given

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def read(document: str) -> Reader:
    reader = Reader()
    reader.feed(document)
    return reader


def test_everything_that_was_recorded_is_shown(tmp_path: Path) -> None:
    recording = record_run(tmp_path, ranks=2, devices=2, slow_rank=1)
    seen = diagnose_recording(recording)
    document = run_page(recording, diagnosis(facts=seen.facts))
    reader = read(document)
    assert reader.headings[:3] == ["The step waits for its data.", "Where the time goes", "What to do"]
    assert reader.headings[3:] == SECTIONS
    for needed in (
        "saves 31 % (19 to 37 %)",
        "dataloader_num_workers=4",
        "1 finding saves less than 3 % of a step.",
        "evaluation (2)",
        "sw power cap",
        "2 × NVIDIA A100-SXM4-80GB",
        "train.py:41 __getitem__",
        "gradient_accumulation_steps",
        "DistilBertForSequenceClassification",
        "Device time: this torch has no CUDA device",
    ):
        assert needed in document, needed


def test_what_the_user_names_stays_text(tmp_path: Path) -> None:
    recording = record_run(tmp_path, ranks=2, hostile=HOSTILE, steps=120)
    document = run_page(recording, diagnosis(unknown=(HOSTILE,)))
    reader = read(document)
    assert reader.tags <= ALLOWED
    assert reader.scripts == 1
    assert reader.fetched == []
    assert "<script>alert" not in document
    assert "<img" not in document


@pytest.mark.parametrize(("ranks", "devices", "steps"), [(64, 8, 150), (1, 16, 400)])
def test_many_ranks_and_devices_stay_under_a_megabyte(tmp_path: Path, ranks: int, devices: int, steps: int) -> None:
    recording = record_run(tmp_path, ranks=ranks, devices=devices, steps=steps)
    assert len(run_page(recording, diagnosis(facts=diagnose_recording(recording).facts)).encode()) < MEGABYTE


def test_steps_without_times_of_day_are_drawn_by_their_number(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, describe_run()).close()
    writer = RowWriter(tmp_path)
    writer.write([StepRecord(step=step, loss=1 / (step + 1)) for step in range(50)])
    writer.close()
    recording_page = run_page_of(tmp_path)
    assert "What could not be told" in recording_page
    assert '"xk":"count"' in recording_page


def test_an_empty_recording_is_a_page_that_says_so(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path)
    writer.write_info("run", to_json(describe_run(command=("true",))))
    writer.close()
    document = run_page_of(tmp_path)
    assert "does not suffice for a verdict" in document
    assert "it still runs, or was killed" in document


def run_page_of(folder: Path) -> str:
    recording = Recording(folder)
    return run_page(recording, diagnosis(facts=Facts(source="the recording"), findings=(), folded=()))


def test_bands_and_numbers_agree_with_the_recording(tmp_path: Path) -> None:
    recording = record_run(tmp_path, steps=200)
    document = run_page(recording, diagnosis(facts=diagnose_recording(recording).facts))
    described = re.search(r'aria-label="Time of a step: rank 0 from ([\d.]+) ms to ([\d.]+) s', document)
    walls_ms = 1e3 * np.array([step.wall_s for step in recording.steps()], dtype=float)
    assert described is not None
    assert float(described[1]) == pytest.approx(walls_ms.min(), rel=0.01)
    assert 1e3 * float(described[2]) == pytest.approx(walls_ms.max(), rel=0.01)


def test_a_device_log_is_drawn_without_steps(tmp_path: Path) -> None:
    with ReadingWriter(tmp_path, [Device(index=0, name="NVIDIA L4")]) as writer:
        for second in range(60):
            writer.add(Reading(at_ns=second * 10**9, device=0, busy_percent=50.0, power_w=60.0 + second))
    recording = Recording(tmp_path)
    document = run_page(recording, diagnose_recording(recording), named="gpu.csv")
    assert read(document).headings[1:] == ["What to do", "Devices", "Unknown"]
    assert "1 × NVIDIA L4" in document
    assert "Power: device 0 from 60 W to 119 W" in document
    assert str(tmp_path) not in document
