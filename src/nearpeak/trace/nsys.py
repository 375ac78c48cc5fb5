"""Reads the SQLite export of Nsight Systems (`nsys export --type sqlite`), of any version, into timelines.

One process with work on a device is one timeline; ranks are not told. Steps are the NVTX ranges whose names look like
steps; where there are none, steps are cut where the same kernels repeat, else the time in which devices worked is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearpeak.errors import DataError
from nearpeak.trace.assembly import Assembly, kinds_of
from nearpeak.trace.kinds import call_kind, kernel_kind, span_kind
from nearpeak.trace.nsys_tables import MISSING, Tables, open_export, process_of, thread_of
from nearpeak.trace.step_ranges import Ranges, steps_from_phases, steps_from_ranges
from nearpeak.trace.steps import with_some_steps
from nearpeak.trace.timeline import Device, Kind, Steps, Timeline

__all__ = ["is_nsys", "read_nsys"]

SIGNATURE = b"SQLite format 3\x00"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
HOST_WAITS = (1, 3, 4)
"""Of its syncType: the host waits for an event, a stream, a context; the other is a stream that waits for an event."""
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
RANGES = "NVTX_EVENTS"
PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
RANGE_TYPES = (59, 60, 70, 71, MISSING)
"""Of NVTX_EVENTS.eventType: ranges of one thread, ranges of the process, and both when imported as text."""
PROFILER_OVERHEADS = (3, 4, 5, 1 << 16, 2 << 16, 3 << 16, MISSING)
"""Of overheadType: buffers flushed, code instrumented, resources made; as Nsight numbers them, and CUPTI. The others
(compiling, loading, a full command buffer) would be there without a profiler, too."""
VARIABLE_PARTS = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
"""What PyTorch appends to the names of its ranges: with it, no two names would be the same."""
LONGEST_NAME = 300
ROUTES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
ROUTES |= {11: "HtoD", 12: "DtoH", 13: "DtoD"}
"""Of MEMCPY.copyKind, CUPTI's numbers; the last are unified memory's."""
MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
"""Of MEMCPY.srcKind and dstKind, Nsight's numbers."""

Int64s = NDArray[np.int64]


def is_nsys(path: Path) -> bool:
    """A SQLite database, by its first bytes."""
    with path.open("rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def read_nsys(path: Path) -> list[Timeline]:
    """One timeline for each process that worked on a device, in order of its first device, then of its number."""
    with open_export(path) as tables:
        export = _Export(tables)
        if not export.processes:
            raise DataError(f"{path}: no work on a device was traced; trace with `nsys profile --trace=cuda,nvtx`.")
        return [export.timeline(process) for process in export.processes]


@dataclass(slots=True)
class _Work:
    """What ran on devices, of all processes."""

    start_ns: Int64s
    end_ns: Int64s
    device: Int64s
    stream: Int64s
    correlation: Int64s
    process: Int64s
    kind: Int64s
    name: Int64s
    """Index into the names of the export."""
    n_bytes: Int64s


@dataclass(slots=True)
class _Host:
    """What host threads did, of all processes."""

    start_ns: Int64s
    end_ns: Int64s
    process: Int64s
    thread: Int64s
    kind: Int64s
    name: Int64s
    correlation: Int64s


@dataclass(slots=True)
class _Names:
    """Distinct names, numbered."""

    index: dict[str, int] = field(default_factory=dict)

    def of(self, text: str) -> int:
        return self.index.setdefault(text[:LONGEST_NAME], len(self.index))

    def all(self) -> list[str]:
        return list(self.index)


class _Export:
    """The tables, read once, then told apart by process."""

    def __init__(self, tables: Tables):
        self.tables = tables
        self.notes: list[str] = []
        self._names = _Names()
        self._work = _merged_work([self._kernels(), self._graphs(), self._copies(), self._sets()])
        self._host = _merged_host([self._calls(), self._waits(), *self._overheads(), self._ranges()])
        self._find_processes()
        self.processes = self._working_processes()
        self._missing()

    def _find_processes(self) -> None:
        """Exports of 2019 and before do not say whose work it is; the call that launched it does."""
        unknown = np.flatnonzero(self._work.process == MISSING)
        calls = np.flatnonzero(self._host.correlation >= 0)
        if not len(unknown) or not len(calls):
            return
        correlation, first = np.unique(self._host.correlation[calls], return_index=True)
        place = np.minimum(np.searchsorted(correlation, self._work.correlation[unknown]), len(correlation) - 1)
        process = self._host.process[calls[first[place]]]
        found = correlation[place] == self._work.correlation[unknown]
        usual = np.bincount(process).argmax()
        self._work.process[unknown] = np.where(found, process, usual)
        self.notes.append("The export does not say which process worked on a device: its launch calls do.")

    def _working_processes(self) -> list[int]:
        firsts = [
            (int(self._work.device[self._work.process == each].min()), int(each)) for each in _distinct(self._work)
        ]
        return [process for _, process in sorted(firsts)]

    def _missing(self) -> None:
        """Say which tables are not there, and what cannot be told without them."""
        for table, without in (
            (KERNELS, "no kernel is known"),
            (CALLS, "launches and synchronisations are unknown"),
            (RANGES, "nothing is known of steps, input or phases"),
        ):
            if not self.tables.has(table):
                self.notes.append(f"The export has no table {table}: {without}.")

    # -- devices -------------------------------------------------------------------------------------------------------

    def _kernels(self) -> _Work:
        columns = self.tables.numbers(KERNELS, (*PLACE, "demangledName", "shortName", "mangledName"))
        key = columns["demangledName"]
        for other in ("shortName", "mangledName"):
            key = np.where(key >= 0, key, columns[other])
        return self._placed(columns, *self._texts(key, kernel_kind))

    def _graphs(self) -> _Work:
        """Whole CUDA graphs, where their kernels were not traced one by one."""
        columns = self.tables.numbers(GRAPHS, (*PLACE, "graphId"))
        ids, back = np.unique(columns["graphId"], return_inverse=True)
        names = np.array([self._names.of(f"CUDA graph {each}") for each in ids.tolist()], dtype=np.int64)
        if len(ids):
            self.notes.append("CUDA graphs were traced as a whole: what is in them counts as computing.")
        return self._placed(columns, names[back], np.full(len(back), Kind.KERNEL))

    def _copies(self) -> _Work:
        columns = self.tables.numbers(COPIES, (*PLACE, "copyKind", "srcKind", "dstKind", "bytes"))
        routes = np.stack([columns["copyKind"], columns["srcKind"], columns["dstKind"]], axis=1)
        distinct, back = np.unique(routes, axis=0, return_inverse=True)
        names = np.array([self._names.of(_copy_name(*map(int, each))) for each in distinct], dtype=np.int64)
        back = back.reshape(-1)
        return self._placed(columns, names[back], np.full(len(back), Kind.COPY), columns["bytes"])

    def _sets(self) -> _Work:
        columns = self.tables.numbers(SETS, (*PLACE, "memKind", "bytes"))
        count = len(columns["start"])
        name = np.full(count, self._names.of("Memset (Device)"))
        return self._placed(columns, name, np.full(count, Kind.KERNEL), columns["bytes"])

    def _placed(self, columns: dict[str, Int64s], name: Int64s, kind: Int64s, n_bytes: Int64s | None = None) -> _Work:
        return _Work(
            start_ns=columns["start"],
            end_ns=columns["end"],
            device=np.maximum(columns["deviceId"], 0),
            stream=columns["streamId"],
            correlation=columns["correlationId"],
            process=np.where(columns["globalPid"] == MISSING, MISSING, process_of(columns["globalPid"])),
            kind=kind.astype(np.int64),
            name=name,
            n_bytes=np.full(len(name), MISSING) if n_bytes is None else n_bytes,
        )

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _calls(self) -> _Host:
        columns = self.tables.numbers(CALLS, ("start", "end", "globalTid", "correlationId", "nameId"))
        name, kind = self._texts(columns["nameId"], call_kind)
        return _hosted(columns, name, kind, columns["correlationId"])

    def _waits(self) -> _Host:
        """Synchronisations, where the calls that made them were not traced."""
        known = self.tables.has(CALLS)
        columns = self.tables.numbers("" if known else SYNCS, ("start", "end", "globalPid", "syncType"))
        by_host = np.isin(columns["syncType"], HOST_WAITS)
        kept = {key: column[by_host] for key, column in columns.items()}
        kept["globalTid"] = kept["globalPid"]
        name = np.full(len(kept["start"]), self._names.of("synchronisation"))
        return _hosted(kept, name, np.full(len(name), Kind.SYNC))

    def _overheads(self) -> Iterable[_Host]:
        for table in OVERHEADS:
            columns = self.tables.numbers(table, ("start", "end", "globalTid", "nameId", "overheadType"))
            own = np.isin(columns["overheadType"], PROFILER_OVERHEADS)
            columns = {key: column[own] for key, column in columns.items()}
            name, _ = self._texts(columns["nameId"], call_kind)
            yield _hosted(columns, name, np.full(len(name), Kind.PROFILER))

    def _ranges(self) -> _Host:
        """NVTX ranges with an end; marks and counters have none."""
        wanted = ("start", "end", "globalTid", "eventType", "textId")
        columns = self.tables.numbers(RANGES, wanted)
        name = self._range_names(columns["textId"])
        is_range = np.isin(columns["eventType"], RANGE_TYPES) & (columns["end"] >= columns["start"])
        kept = {key: column[is_range] for key, column in columns.items()}
        texts = self._names.all()
        used, back = np.unique(name[is_range], return_inverse=True)
        kinds = kinds_of([_range_kind(texts[each]) for each in used.tolist()])
        return _hosted(kept, name[is_range], kinds[back])

    def _range_names(self, text_id: Int64s) -> Int64s:
        """A range's text stands in its row, or behind an id."""
        registered = self.tables.strings(int(each) for each in np.unique(text_id) if each >= 0)
        names = np.empty(len(text_id), dtype=np.int64)
        rows = self.tables.rows(RANGES, ("text",))
        for row, key in enumerate(text_id.tolist()):
            (text,) = next(rows, (None,))
            names[row] = self._names.of(_stable(text if isinstance(text, str) else registered.get(key, "")))
        return names

    # -- names ---------------------------------------------------------------------------------------------------------

    def _texts(self, key: Int64s, kind_of: Callable[[str], Kind]) -> tuple[Int64s, Int64s]:
        """Index of the name, and the kind, for each id of a text."""
        ids, back = np.unique(key, return_inverse=True)
        found = self.tables.strings(ids.tolist())
        texts = [_unversioned(found.get(each, f"unnamed {each}")) for each in ids.tolist()]
        names = np.array([self._names.of(text) for text in texts], dtype=np.int64)
        kinds = kinds_of([kind_of(text) for text in texts])
        return names[back], kinds[back]

    # -- timelines -----------------------------------------------------------------------------------------------------

    def timeline(self, process: int) -> Timeline:
        """What one process did."""
        assembly = Assembly(str(self.tables.path))
        assembly.notes += self.notes
        for text in self._names.all():
            assembly.name(text)
        label = self._label(process)
        self._add_work(assembly, process, label)
        self._add_host(assembly, process, label)
        return with_some_steps(assembly.timeline(self._steps(process)))

    def _add_work(self, assembly: Assembly, process: int, label: str) -> None:
        work = self._work
        rows = np.flatnonzero(work.process == process)
        for device in np.unique(work.device[rows]).tolist():
            assembly.devices.append(self._device(device, process))
        places = np.stack([work.device[rows], work.stream[rows]], axis=1)
        distinct, back = np.unique(places, axis=0, return_inverse=True)
        lanes = [assembly.lane(label, f"stream {stream}", device) for device, stream in distinct.tolist()]
        assembly.add(
            start_ns=work.start_ns[rows],
            duration_ns=work.end_ns[rows] - work.start_ns[rows],
            kind=work.kind[rows],
            lane=np.array(lanes, dtype=np.int64)[back.reshape(-1)],
            name=work.name[rows],
            correlation=work.correlation[rows],
            n_bytes=work.n_bytes[rows],
        )

    def _add_host(self, assembly: Assembly, process: int, label: str) -> None:
        host = self._host
        rows = np.flatnonzero(host.process == process)
        threads, back = np.unique(host.thread[rows], return_inverse=True)
        lanes = np.array([assembly.lane(label, f"thread {each}") for each in threads.tolist()], dtype=np.int64)
        assembly.add(
            start_ns=host.start_ns[rows],
            duration_ns=host.end_ns[rows] - host.start_ns[rows],
            kind=host.kind[rows],
            lane=lanes[back],
            name=host.name[rows],
            correlation=host.correlation[rows],
        )

    def _steps(self, process: int) -> Steps | None:
        host = self._host
        rows = np.flatnonzero((host.process == process) & np.isin(host.kind, (Kind.SPAN, Kind.OP, Kind.INPUT)))
        used, back = np.unique(host.name[rows], return_inverse=True)
        texts = self._names.all()
        ranges = Ranges(
            start_ns=host.start_ns[rows],
            end_ns=host.end_ns[rows],
            thread=host.thread[rows],
            name=back,
            names=tuple(texts[each] for each in used.tolist()),
        )
        return steps_from_ranges(ranges) or steps_from_phases(ranges)

    def _label(self, process: int) -> str:
        for number, name in self.tables.rows("PROCESSES", ("pid", "name")):
            if number == process:
                return f"{name} ({process})"
        return f"process {process}"

    def _device(self, device: int, process: int) -> Device:
        """As the export describes it: the process's own numbering is translated where it says how."""
        gpu = device
        for cuda, pid, told in self.tables.rows("TARGET_INFO_CUDA_DEVICE", ("cudaId", "pid", "gpuId")):
            if cuda == device and pid == process and isinstance(told, int):
                gpu = told
        facts = ("id", "name", "totalMemory", "computeMajor", "computeMinor", "smCount")
        for number, name, memory, major, minor, count in self.tables.rows("TARGET_INFO_GPU", facts):
            if number == gpu:
                return Device(
                    index=device,
                    name=name if isinstance(name, str) else None,
                    memory_bytes=memory if isinstance(memory, int) else None,
                    compute_capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
                    multiprocessors=count if isinstance(count, int) else None,
                )
        return Device(index=device)


def _copy_name(route: int, source: int, target: int) -> str:
    """As all readers name it: ``Memcpy HtoD (Pageable -> Device)``."""
    name = f"Memcpy {ROUTES.get(route, 'unknown')}"
    known = source in MEMORIES and target in MEMORIES
    return f"{name} ({MEMORIES[source]} -> {MEMORIES[target]})" if known else name


def _range_kind(name: str) -> Kind:
    """PyTorch's operators have a namespace: ``aten::add``."""
    return span_kind(name, Kind.OP if "::" in name.split("(")[0] else Kind.SPAN)


def _stable(text: str) -> str:
    """Without what makes each range's name unlike every other."""
    for part in VARIABLE_PARTS:
        text = text.partition(part)[0]
    return text


def _unversioned(name: str) -> str:
    """``cudaLaunchKernel_v7000`` is ``cudaLaunchKernel``."""
    head, mark, version = name.rpartition("_v")
    return head if mark and version.isdigit() and head.startswith("cu") else name


def _hosted(columns: dict[str, Int64s], name: Int64s, kind: Int64s, correlation: Int64s | None = None) -> _Host:
    return _Host(
        start_ns=columns["start"],
        end_ns=columns["end"],
        process=process_of(columns["globalTid"]),
        thread=thread_of(columns["globalTid"]),
        kind=kind.astype(np.int64),
        name=name,
        correlation=np.full(len(name), MISSING) if correlation is None else correlation,
    )


def _distinct(work: _Work) -> list[int]:
    return np.unique(work.process).tolist()


def _merged_work(parts: list[_Work]) -> _Work:
    return _Work(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _Work.__slots__})


def _merged_host(parts: list[_Host]) -> _Host:
    return _Host(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _Host.__slots__})
