"""What planes, lines and events of an XPlane are, by their names and stats (TensorFlow, JAX; GPU, TPU, CPU)."""

from __future__ import annotations

import re

from nearpeak.trace.kinds import call_kind, kernel_kind, span_kind
from nearpeak.trace.timeline import Kind

__all__ = [
    "copy_name",
    "device_of",
    "gpu_kind",
    "host_kind",
    "is_derived_line",
    "is_host_plane",
    "is_step_line",
    "tpu_kind",
]

DEVICE_PLANE = re.compile(r"^/device:(?P<type>GPU|TPU|CUSTOM:[^:]*|[A-Z]+):(?P<index>\d+)$")
HOST_PLANES = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:NVTX-CUPTI", "/host:TPU-runtime")
DERIVED_LINES = frozenset(
    (
        "Steps",
        "XLA Modules",
        "XLA TraceMe",
        "Framework Name Scope",
        "Framework Ops",
        "TensorFlow Name Scope",
        "TensorFlow Ops",
        "Source code",
        "Source Code",
        "Launch Stats",
        "_counters_",
        "Host Offload Ops",
        "Tensor Core Sync Flag",
        "Sparse Core Steps",
        "Sparse Core Modules",
        "Sparse Core Ops",
        "Sparse Core Syncs",
        "Async XLA Ops",
    )
)
"""Lines that XProf, or the collector for it, draws above the work; adding them would count that work twice. The last
ones run beside the core: on the core's own line, waiting for them shows as their `-done` operations."""
STEP_LINES = ("Steps",)
XLA_EXCHANGE = re.compile(
    r"^%?(?:all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-permute|collective-broadcast"
    r"|cross-replica-sum|send(?:-done)?\b|recv(?:-done)?\b)|(?:all-reduce|all-gather|reduce-scatter)[-\w]*fusion"
)
XLA_CONTROL = re.compile(r"^%?(?:while|conditional|call|async-start)(?:[.\d]*$)")
XLA_COPY = re.compile(r"^%?(?:copy-start|copy-done|outfeed|host-transfer|recv-from-host|send-to-host)")
XLA_INPUT = re.compile(r"^%?infeed")
ROUTES = re.compile(r"(H|D|P|A)(?:to|2)(H|D|P|A)$|memcpy(HtoD|DtoH|DtoD|HtoH|PtoP)", re.I)
MEMORY_KINDS = re.compile(r"kind_src:(\w+)\s+kind_dst:(\w+)")
COPY_SIZE = re.compile(r"\b(?:num_bytes|size|bytes):(\d{1,18})\b")
NOISE = ("ThreadpoolListener::", "ExecutorState::Process", "ExecutorDoneCallback", "end: ")


def device_of(plane: str) -> tuple[str, int] | None:
    """Type and index of the device whose plane this is; None for planes of hosts and of metadata."""
    match = DEVICE_PLANE.match(plane)
    return (match["type"], int(match["index"])) if match and len(match["index"]) < 7 else None


def is_host_plane(plane: str) -> bool:
    """Whether the plane's lines are threads of a host."""
    return plane.startswith(HOST_PLANES)


def is_derived_line(device_type: str, line: str) -> bool:
    """Whether the line repeats work of others. On GPUs XLA's operations do: there the streams are the work."""
    return line in DERIVED_LINES or (line == "XLA Ops" and device_type == "GPU")


def is_step_line(line: str) -> bool:
    """Whether the line's events are steps, as the device or its collector saw them."""
    return line in STEP_LINES


def gpu_kind(name: str) -> Kind:
    """Of what ran on a stream of a GPU."""
    if name.lower().startswith("memcpy") or ROUTES.search(name):
        return Kind.COPY
    return kernel_kind(name)


def tpu_kind(name: str) -> Kind:
    """Of an XLA operation on a TPU's core. Loops and calls hold other operations: they are no work themselves."""
    for pattern, kind in (
        (XLA_CONTROL, Kind.DEVICE_SPAN),
        (XLA_INPUT, Kind.INPUT),
        (XLA_EXCHANGE, Kind.COMMUNICATION),
        (XLA_COPY, Kind.COPY),
    ):
        if pattern.search(name):
            return kind
    return Kind.KERNEL


def host_kind(name: str, is_call: bool) -> Kind:
    """Of an event on a thread of a host; `is_call` where it carries a correlation id."""
    if is_call:
        kind = call_kind(name)
        return kind if kind != Kind.CALL or not name.startswith("IteratorGetNext") else Kind.INPUT
    if span_kind(name) == Kind.INPUT:
        return Kind.INPUT
    if name.startswith("$"):
        return Kind.PYTHON
    if name.startswith(NOISE):
        return Kind.OTHER
    called = call_kind(name) if name.startswith(("cu", "hip")) else Kind.CALL
    if called != Kind.CALL:
        return called
    return Kind.OP if ":" in name and "::" not in name else Kind.SPAN


def copy_name(name: str, details: str) -> tuple[str, int]:
    """A copy as all readers name it, ``Memcpy HtoD (Pageable -> Device)``, and its bytes (-1 where not told)."""
    route = ROUTES.search(name)
    if route is None:
        shown = name
    else:
        ends = f"{route[1].upper()}to{route[2].upper()}" if route[1] else route[3]
        shown = f"Memcpy {ends}"
    kinds = MEMORY_KINDS.search(details)
    if kinds:
        shown += f" ({kinds[1].capitalize()} -> {kinds[2].capitalize()})"
    size = COPY_SIZE.search(details)
    return shown, int(size[1]) if size else -1
