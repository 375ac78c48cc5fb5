"""Exports are read back, by the tools' own readers where they are here, and say what the recording says."""

from __future__ import annotations

import csv
import gzip
import json
import struct
from pathlib import Path

import pytest
from samples import record_run

from nearpeak.errors import SettingError, StorageError
from nearpeak.hardware.reading import Device, Reading
from nearpeak.hardware.reading_store import ReadingWriter
from nearpeak.recording import PHASES, Recording
from nearpeak.report.export.perfetto import write_perfetto
from nearpeak.report.export.tables import write_csv, write_parquet
from nearpeak.report.export.tensorboard import crc32c, write_tensorboard


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return record_run(tmp_path / "run", steps=120, ranks=2, devices=2)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_perfetto_has_a_lane_a_phase_and_the_phases_fill_each_step(
    recording: Recording, tmp_path: Path, name: str
) -> None:
    count = write_perfetto(recording, tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)["traceEvents"]
    assert len(events) == count
    lanes = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == 0]
    assert {"steps", "waiting for data", "forward", "backward"} <= set(lanes)
    assert len(lanes) == 2 + len(PHASES)
    steps = [e for e in events if e["ph"] == "X" and e["tid"] == 1 and e["pid"] == 1]
    assert [step["name"] for step in steps[:2]] == ["step 0", "step 1"]
    walls = [step.wall_s for step in recording.steps(process=1)]
    assert [step["dur"] / 1e6 for step in steps] == pytest.approx(walls, abs=1e-8)
    inside = [e for e in events if e["ph"] == "X" and e["tid"] >= 10 and e["pid"] == 1]
    begin, end = steps[5]["ts"], steps[5]["ts"] + steps[5]["dur"]
    filled = sum(e["dur"] for e in inside if begin - 0.1 <= e["ts"] < end - 0.1)
    assert filled == pytest.approx(steps[5]["dur"], rel=0.01)
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"memory", "busy %", "power, W"}
    assert [e["args"]["step"] for e in events if e["name"] == "evaluation" and e["tid"] == 2] == [99.0]


def test_csv_holds_every_row_and_column(recording: Recording, tmp_path: Path) -> None:
    assert write_csv(recording, tmp_path / "steps.csv") == 240
    rows = list(csv.DictReader((tmp_path / "steps.csv").read_text().splitlines()))
    first = recording.steps(limit=1, process=0)[0]
    assert (rows[0]["step"], rows[0]["grad_norm"]) == ("0", "")
    assert float(rows[0]["wall_s"]) == first.wall_s
    assert write_csv(recording, tmp_path / "events.csv", "events") == 1
    with pytest.raises(SettingError, match="must be one of processes, steps"):
        write_csv(recording, tmp_path / "x.csv", "magic")
    with pytest.raises(StorageError, match="cannot be written"):
        write_csv(recording, tmp_path / "no" / "x.csv")


def test_parquet_is_typed_and_the_unknown_is_null(recording: Recording, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert write_parquet(recording, tmp_path / "steps.parquet") == 240
    table = parquet.read_table(tmp_path / "steps.parquet")
    assert str(table.schema.field("samples").type) == "int64"
    assert table["grad_norm"].null_count == 240
    assert table["wall_s"].to_pylist() == [s.wall_s for p in (0, 1) for s in recording.steps(process=p)]


def test_packed_readings_are_written_with_the_others(tmp_path: Path) -> None:
    with ReadingWriter(tmp_path / "log", [Device(index=0, name="NVIDIA L4")]) as writer:
        for second in range(3):
            writer.add(
                Reading(at_ns=second * 10**9, device=0, busy_percent=40 + second, power_w=None if second else 71.5)
            )
    recording = Recording(tmp_path / "log")
    assert write_csv(recording, tmp_path / "readings.csv", "readings") == 3
    rows = list(csv.DictReader((tmp_path / "readings.csv").read_text().splitlines()))
    assert [(row["device"], row["busy_percent"], row["power_w"]) for row in rows] == [
        ("0", "40", "71.5"),
        ("0", "41", ""),
        ("0", "42", ""),
    ]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert write_parquet(recording, tmp_path / "readings.parquet", "readings") == 3
    assert parquet.read_table(tmp_path / "readings.parquet")["power_w"].to_pylist() == [71.5, None, None]


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def records(path: Path) -> list[bytes]:
    """Payloads, with their checksums verified."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        payload = data[at + 12 : at + 12 + length]
        (stored,) = struct.unpack_from("<I", data, at + 12 + length)
        crc = crc32c(payload)
        assert stored == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        found.append(payload)
        at += 16 + length
    return found


def test_tensorboard_files_hold_a_record_a_step(recording: Recording, tmp_path: Path) -> None:
    assert write_tensorboard(recording, tmp_path / "logs") == 240
    (first,) = (tmp_path / "logs" / "rank_0").iterdir()
    found = records(first)
    assert len(found) == 121
    assert b"brain.Event:2" in found[0]
    loss = recording.steps(process=0)[7].loss
    assert loss is not None
    tag = b"\x0a\x0dlearning/loss\x15" + struct.pack("<f", loss)
    assert tag in found[8]
    with pytest.raises(SettingError, match="holds event files already"):
        write_tensorboard(recording, tmp_path / "logs")
    assert write_tensorboard(recording, tmp_path / "logs", force=True) == 240


def test_tensorboards_own_reader_agrees(recording: Recording, tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_tensorboard(recording, tmp_path / "logs")
    read = loader.EventAccumulator(str(tmp_path / "logs" / "rank_0")).Reload()
    assert [round(each.value, 4) for each in read.Scalars("phase_ms/input")[:3]] == [
        round(step.input_ms or 0, 4) for step in recording.steps(process=0)[:3]
    ]
