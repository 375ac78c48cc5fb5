"""Files of one run are told apart: ranks, copies, cycles of one process, several processes of one machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nearpeak.trace.formats import read_traces, traces_below
from nearpeak.trace.ranks import rank_in_name

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package

from nsys_writer import write_export
from traces import loop, write


def info(rank: int, world: int = 16) -> dict[str, int]:
    return {"rank": rank, "world_size": world}


@pytest.mark.parametrize(
    ("name", "rank", "world"),
    [
        ("rank3of8.json", 3, 8),
        ("worker12_step_7.1694128201545.pt.trace.json", 12, None),
        ("0.pt.trace.json", 0, None),
        ("host_81276.1694128201545.pt.trace.json", None, None),
        ("gpu4_rank3.json", 3, None),
        ("a100gpu8_rank0_of_16.json", 0, 16),
        ("worker2_rank10.json", 10, None),
        ("2024_10_01_trace.json", None, None),
        ("rank0_prof_3.pt.trace.json", 0, None),
        ("rank1_prof0.json", 1, None),
    ],
)
def test_ranks_in_names(name: str, rank: int | None, world: int | None) -> None:
    assert rank_in_name(name) == (rank, world)


def test_sixteen_files_without_ranks_in_their_names(tmp_path: Path) -> None:
    """Packed beside plain; two do not say their rank and get those that are left."""
    for rank in range(16):
        around = {"distributedInfo": info(rank)} if rank not in (5, 11) else {}
        name = f"node-{rank // 8}_{900 + rank}.16941282015{rank:02}.pt.trace.json{'.gz' if rank % 2 else ''}"
        write(tmp_path / name, loop(begin_us=1000.0 + rank), **around)
    timelines = read_traces(traces_below(tmp_path))
    assert [timeline.rank for timeline in timelines] == list(range(16))
    assert [timeline.source[:10] for timeline in timelines if timeline.rank in (5, 11)] == ["node-0_905", "node-1_911"]


def test_processes_of_one_machine_are_no_ranks_by_its_number(tmp_path: Path) -> None:
    """`gpu-12` is the machine's name: none of its four processes may be lost."""
    for process in range(4):
        name = f"gpu-12_{900 + process}.1694128201545.pt.trace.json"
        write(tmp_path / name, loop(begin_us=1000.0 + process))
    timelines = read_traces(traces_below(tmp_path))
    assert [timeline.rank for timeline in timelines] == [0, 1, 2, 3]
    assert [timeline.source[7:10] for timeline in timelines] == ["900", "901", "902", "903"]


def test_cycles_of_a_process_without_rank_are_one(tmp_path: Path) -> None:
    for cycle in range(3):
        write(tmp_path / f"host_42.169412820{cycle}545.pt.trace.json", loop(begin_us=1000.0 + 5000 * cycle))
    (timeline,) = read_traces(traces_below(tmp_path))
    assert timeline.source == "host_42.1694128202545.pt.trace.json"
    assert any("recorded 3 times" in note for note in timeline.notes)


def test_a_packed_copy_beside_the_plain_file_counts_once(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz"):
        write(tmp_path / name, loop(), distributedInfo=info(0, 1))
    (timeline,) = read_traces(traces_below(tmp_path))
    assert any("holds the same events" in note for note in timeline.notes)


def test_processes_of_one_file_are_no_copies(tmp_path: Path) -> None:
    """Even if they did the same at the same times."""
    timelines = read_traces([write_export(tmp_path / "two.sqlite", processes=2)])
    assert [timeline.rank for timeline in timelines] == [0, 1]


def test_an_export_of_one_process_has_the_rank_of_its_name(tmp_path: Path) -> None:
    paths = [write_export(tmp_path / f"report_rank{rank}.sqlite", processes=1, steps=3 + rank) for rank in (1, 0)]
    assert [(line.rank, len(line.steps)) for line in read_traces(paths)] == [(0, 3), (1, 4)]


def test_two_files_of_one_rank_at_one_time_are_both_kept(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{at}.x.json", loop(begin_us=at), distributedInfo=info(0)) for at in (1000.0, 1010.0)]
    timelines = read_traces(paths)
    assert [timeline.rank for timeline in timelines] == [0, 1]
    assert any("of rank 0, too" in note for note in timelines[1].notes)


def test_a_given_rank_goes_before_one_guessed_from_a_name(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", loop(begin_us=1000.0))
    write(tmp_path / "x.json", loop(begin_us=1010.0), distributedInfo=info(0))
    assert [timeline.source for timeline in read_traces(traces_below(tmp_path))] == ["x.json", "rank0.json"]


def test_folders_may_carry_the_rank(tmp_path: Path) -> None:
    for rank in (10, 2):
        (tmp_path / f"rank{rank}").mkdir()
        write(tmp_path / f"rank{rank}" / "trace.json", loop(begin_us=1000.0 + rank))
    assert [timeline.rank for timeline in read_traces(traces_below(tmp_path))] == [2, 10]
