"""What a name in a trace stands for: kernels, calls and ranges of NVIDIA's, AMD's and the frameworks' making.

Each function looks at one distinct name; readers ask once a name, not once an event.
"""

from __future__ import annotations

import re

from nearpeak.trace.timeline import Kind

__all__ = [
    "call_kind",
    "copy_route",
    "is_blocking_copy",
    "is_input",
    "is_pageable",
    "kernel_kind",
    "span_kind",
    "step_number",
]

# Patterns are looked for in names in lower case: that is several times as fast as to ignore case. The signs before each
# are parts of which one is in every name that the pattern matches: a quick look before the slow one.
EXCHANGE_SIGNS = ("ccl", "reduce", "multimem", "symm_mem", "nvshmem", "deep", "userbuffers", "custom_ar")
EXCHANGE = re.compile(
    r"nccl|rccl|\bmscclkernel|msccl_kernel|one_?shot_all_reduce|two_?shot_all_reduce|cross_device_reduce"
    r"|all_?reduce.*kernel|multimem_|symm_mem|nvshmem|oneccl|hccl|deep_?ep|userbuffers|custom_ar"
)
"""Exchange kernels: NCCL's old and new names (`ncclKernel_…`, `ncclDevKernel_…`), RCCL's, and hand-written ones."""
LAUNCH_SIGNS = ("launch", "memcpy", "memset", "append", "enqueue")
LAUNCH = re.compile(
    r"^(cuda|cu|hip)_?(ext)?(module)?(graph)?launch(cooperative)?(kernel|kernelex|hostfunc|graph)?"
    r"|^(cuda|cu|hip)(memcpy|memset)|ext(module)?launchkernel|launchkernel|launchmultikernel"
    r"|^zecommandlistappend|^urenqueue|^aclrtlaunch"
)
SYNC_SIGNS = ("sync", "queuefinish")
SYNC = re.compile(
    r"^(cuda|cu|hip)(device|stream|event|ctx|context)?synchroni[sz]e|^(cuda|cu|hip)eventsync|synchronize\b"
    r"|^zeeventhostsynchronize|^urqueuefinish"
)
INPUT_SIGNS = ("next", "dataloader", "get_train_batch", "_get_data", "prefetchiterator")
INPUT = re.compile(
    r"dataloader.*__next__|enumerate\(dataloader\)|dataloaderiter|iteratorgetnext|iterator::getnext|get_next_batch"
    r"|\[pl\].*(train_dataloader_next|train_next|fetch_next)|get_train_batch|_next_data\b|_try_get_data\b"
    r"|prefetchiterator|dataloader.*next"
)
"""What loaders call waiting for a batch: torch's before and after 1.9, Lightning's, TorchRec's, TensorFlow's."""

STEP = re.compile(
    r"^\[?(?:ProfilerStep|ProfileStep|Profiler Step|train_step|TrainStep|train step|step)[#_ :]?\s*(\d+)\]?$"
)
STEP_BEGINS = "[PTts"
ROUTE = re.compile(
    r"\b([HDAP]to[HDAP])\b|(Host|Device|Pageable|Pinned|Unified)To(Host|Device|Pageable|Pinned)", re.IGNORECASE
)


BLOCKING_COPY = re.compile(r"^(cuda|cu|hip)memcpy(?!.*async)")
"""Copies that return when they are done, such as `hipMemcpyWithStream`, with which PyTorch reads values on AMD."""
TELLING = 256
"""Characters of a kernel's name that tell what it is; those of templates go on for thousands."""
NAMED_INPUT = re.compile(
    r"(?:(?:wait(?:ing)?(?:[ _]for)?|get|load(?:ing)?|fetch(?:ing)?|next|read(?:ing)?)[ _](?:the[ _])?"
    r"(?:next[ _]|train(?:ing)?[ _]|mini[ _-]?)?(?:data|batch|batches|inputs?|samples?)"
    r"|(?:train(?:ing)?[ _])?(?:data|batch|input)[ _-]?(?:load(?:ing|er)?|fetch(?:ing)?|wait(?:ing)?|reading))"
    r"[ _#:]*\d*",
    re.IGNORECASE,
)
"""What users call the range in which their loop gets its batch."""


def kernel_kind(name: str) -> Kind:
    """Of a kernel on a device."""
    return Kind.COMMUNICATION if _has(EXCHANGE_SIGNS, EXCHANGE, name[:TELLING].lower()) else Kind.KERNEL


def call_kind(name: str) -> Kind:
    """Of a call into the driver or its library."""
    lowered = name.lower()
    if _has(SYNC_SIGNS, SYNC, lowered):
        return Kind.SYNC
    return Kind.LAUNCH if _has(LAUNCH_SIGNS, LAUNCH, lowered) else Kind.CALL


def _has(signs: tuple[str, ...], pattern: re.Pattern[str], lowered: str) -> bool:
    for sign in signs:
        if sign in lowered:
            return pattern.search(lowered) is not None
    return False


def is_blocking_copy(name: str) -> bool:
    """Whether a call copies and waits until that is done."""
    return BLOCKING_COPY.search(name.lower()) is not None


def span_kind(name: str, otherwise: Kind = Kind.SPAN) -> Kind:
    """Of a named range or an operator on the host."""
    named = otherwise == Kind.SPAN and NAMED_INPUT.fullmatch(name) is not None
    return Kind.INPUT if named or is_input(name) else otherwise


def is_input(name: str) -> bool:
    """Whether a range stands for waiting for the next batch."""
    return _has(INPUT_SIGNS, INPUT, name.lower())


def step_number(name: str) -> int | None:
    """The number in the name of a step's range; None where it is no step."""
    match = STEP.match(name) if name[:1] in STEP_BEGINS else None
    return int(match.group(1)) if match and len(match.group(1)) < 19 else None


def copy_route(name: str) -> str:
    """``HtoD``, ``DtoH``, ``DtoD``, ``PtoP``, ``HtoH``; ``unknown`` where the name does not say."""
    match = ROUTE.search(name[:TELLING])
    if match is None:
        return "unknown"
    if match.group(1):
        return f"{match.group(1)[0].upper()}to{match.group(1)[3].upper()}".replace("A", "D")
    ends = ("D" if end.lower() == "device" else "H" for end in match.group(2, 3))
    return "to".join(ends)


def is_pageable(name: str) -> bool:
    """Whether a copy goes through memory that is not pinned."""
    return "pageable" in name.lower()
