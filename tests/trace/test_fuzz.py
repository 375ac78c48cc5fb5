"""Damaged traces raise nothing but nearpeak's own errors, soon, in little memory; benchmarks/fuzz.py tries 10,000."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from fuzzing import Outcome, fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_writer import write_export
from xplane_writer import training_space

from nearpeak.cli._sources import diagnose_paths
from nearpeak.errors import NearpeakError


def test_damaged_traces_of_all_formats(tmp_path: Path) -> None:
    outcome: Outcome = fuzz(tmp_path, 260, 20, lambda path: diagnose_paths([path]))
    assert outcome.crashes == []
    assert outcome.total == 260
    assert len(outcome.read) == 4  # damage leaves something to be told in every format
    assert len(outcome.refused) >= 3
    assert outcome.slowest_s < 5
    assert outcome.grown_bytes < 200e6


def test_the_search_finds_a_reader_that_fails(tmp_path: Path) -> None:
    """It would be no search if it could not."""

    def careless(path: Path) -> object:
        return path.read_bytes()[300] if path.name == "t.json" else diagnose_paths([path])

    outcome = fuzz(tmp_path, 200, 3, careless)
    assert outcome.crashes and all("IndexError" in each for each in outcome.crashes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(octets=st.binary(max_size=400), at=st.floats(0, 1), name=st.sampled_from(["t.xplane.pb", "t.sqlite", "t.json"]))
def test_any_bytes_anywhere(tmp_path: Path, octets: bytes, at: float, name: str) -> None:
    sound = {"t.xplane.pb": training_space(2), "t.sqlite": b"", "t.json": b'{"traceEvents": []}'}[name]
    if name == "t.sqlite":
        sound = write_export(tmp_path / "seed.sqlite", processes=1, steps=1).read_bytes()
    place = int(at * len(sound))
    path = tmp_path / name
    path.write_bytes(sound[:place] + octets + sound[place:])
    with suppress(NearpeakError):  # anything else is a failure
        diagnose_paths([path])


def test_times_beyond_all_numbers(tmp_path: Path) -> None:
    """All alike: none of them is far from the others."""
    span = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9e305, "dur": 1}'
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{span}, {span}]}}')
    with suppress(NearpeakError):  # anything else is a failure
        diagnose_paths([tmp_path / "t.json"])


@pytest.mark.parametrize("name", ["t.xplane.pb", "t.sqlite", "t.json", "t.json.gz", "h.overview_page.pb"])
def test_empty_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(NearpeakError):
        diagnose_paths([tmp_path / name])
