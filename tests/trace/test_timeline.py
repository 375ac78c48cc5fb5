"""A timeline's columns belong together."""

from __future__ import annotations

import numpy as np
import pytest

from nearpeak.errors import DataError
from nearpeak.trace.timeline import Kind, Lane, Timeline

LANES = (Lane(process="1", thread="main"), Lane(process="0", thread="7", device=3))


def timeline(kinds: list[Kind], lanes: list[int]) -> Timeline:
    count = len(kinds)
    return Timeline(
        source="test",
        start_ns=np.arange(count, dtype=np.int64) * 10,
        duration_ns=np.full(count, 7),
        kind=np.array(kinds, np.uint8),
        lane=np.array(lanes, np.int32),
        name=np.zeros(count, np.int32),
        correlation=np.full(count, -1),
        n_bytes=np.full(count, -1),
        names=("x",),
        lanes=LANES,
    )


def test_rows_by_kind_and_device() -> None:
    line = timeline([Kind.OP, Kind.KERNEL, Kind.COPY, Kind.OP], [0, 1, 1, 0])
    assert line.rows(Kind.OP).tolist() == [0, 3]
    assert line.rows(Kind.KERNEL, Kind.COPY, device=3).tolist() == [1, 2]
    assert line.rows(Kind.KERNEL, device=0).tolist() == []
    assert line.busy_devices() == (3,)
    assert line.end_ns.tolist() == [7, 17, 27, 37]


def test_a_span_on_a_device_is_no_work() -> None:
    assert timeline([Kind.DEVICE_SPAN, Kind.LAUNCH], [1, 0]).busy_devices() == ()


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(DataError, match="different lengths"):
        Timeline(source="test", start_ns=np.zeros(2, np.int64))


def test_notes_are_added() -> None:
    assert timeline([], []).with_notes(["a", "b"]).with_notes(["c"]).notes == ("a", "b", "c")
