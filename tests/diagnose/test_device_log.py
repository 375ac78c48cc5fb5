from __future__ import annotations

from pathlib import Path

import pytest

from nearpeak.diagnose.device_log import diagnose_log, record_log
from nearpeak.errors import DataError
from nearpeak.hardware.logs.log import read_log
from nearpeak.hardware.reading_store import load_devices, load_readings

CASES = Path(__file__).parents[3] / "shared" / "cases" / "monitor"
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES} is not there; logs of real machines stay outside")

LOG = "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n" + "".join(
    f"2026/03/01 10:{n // 60:02}:{n % 60:02}.000, 0, NVIDIA A100, {0 if n % 2 else 99} %, 39000 MiB, 40960 MiB\n"
    for n in range(120)
)


def write(folder: Path, text: str = LOG) -> Path:
    path = folder / "gpu.csv"
    path.write_text(text)
    return path


def test_a_log_is_diagnosed(tmp_path: Path) -> None:
    diagnosis = diagnose_log(write(tmp_path))
    (finding,) = diagnosis.findings
    assert finding.kind == "idle" and "50 %" in finding.title
    assert finding.evidence[0].source == f"120 readings of device 0 in {tmp_path / 'gpu.csv'}"
    assert any("no steps" in sentence for sentence in diagnosis.unknown)


def test_a_log_becomes_a_recording(tmp_path: Path) -> None:
    log = read_log(write(tmp_path))
    recording = record_log(log, tmp_path / "recording")
    assert tuple(load_readings(recording)) == log.readings
    assert tuple(load_devices(recording)) == log.devices
    assert recording.run.started_at == "2026-03-01T10:00:00+00:00"


@needs_cases
@pytest.mark.parametrize("path", sorted(CASES.rglob("*.*")), ids=lambda path: path.name)
def test_real_logs_become_recordings_without_loss(path: Path, tmp_path: Path) -> None:
    log = read_log(path)
    assert tuple(load_readings(record_log(log, tmp_path / "recording"))) == log.readings


def test_messages_of_a_driver_are_told(tmp_path: Path) -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    diagnosis = diagnose_log(write(tmp_path, text))
    assert any("couldn't communicate" in sentence for sentence in diagnosis.unknown)


def test_what_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        diagnose_log(write(tmp_path, "nothing of the kind\n"))


@needs_cases
@pytest.mark.parametrize(
    ("file", "kind", "words"),
    [
        ("linux-x86_64__nvidia-l40s__595.80.txt", "busy_not_working", "100 % utilisation with nothing on it"),
        ("linux-x86_64__nvidia-h100-mig__590.48.01.txt", "unreadable", "MIG is on"),
        ("linux-x86_64__nvidia-geforce-rtx-2080-super__595.71.05.txt", "throttled", "power limit"),
    ],
)
def test_classic_misreadings_of_real_cards(file: str, kind: str, words: str) -> None:
    titles = [finding.title for finding in diagnose_log(CASES / "nvidia_smi" / file).findings if finding.kind == kind]
    assert any(words in title for title in titles), titles


@needs_cases
def test_a_card_at_work_is_left_in_peace() -> None:
    diagnosis = diagnose_log(CASES / "nvidia_smi" / "linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt")
    assert diagnosis.findings == ()
