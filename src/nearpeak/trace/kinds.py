"""What a name in a trace stands for: kernels, calls and ranges of NVIDIA's, AMD's and the frameworks' making.

Each function looks at one distinct name; readers ask once a name, not once an event.
"""

from __future__ import annotations

import re

from nearpeak.trace.timeline import Kind

__all__ = ["call_kind", "copy_route", "is_input", "is_pageable", "kernel_kind", "span_kind", "step_number"]

EXCHANGE = re.compile(
    r"nccl|rccl|\bmscclKernel|msccl_kernel|one[_]?shot_all_reduce|two[_]?shot_all_reduce|cross_device_reduce"
    r"|all_?reduce.*kernel|multimem_|symm_mem|nvshmem|oneccl|hccl|deep_?ep|userbuffers|custom_ar",
    re.IGNORECASE,
)
"""Exchange kernels: NCCL's old and new names (`ncclKernel_…`, `ncclDevKernel_…`), RCCL's, and hand-written ones."""

LAUNCH = re.compile(
    r"^(cuda|cu|hip)_?(Ext)?(Module)?(Graph)?Launch(Cooperative)?(Kernel|KernelEx|HostFunc|Graph)?|^(cuda|cu|hip)(Memcpy|Memset)"
    r"|^(hip|cuda|cu)GraphLaunch|Ext(Module)?LaunchKernel|LaunchKernel|^zeCommandListAppend|^urEnqueue|^aclrtLaunch",
    re.IGNORECASE,
)
SYNC = re.compile(
    r"^(cuda|cu|hip)(Device|Stream|Event|Ctx|Context)?Synchroni[sz]e|^(cuda|cu|hip)EventSync|Synchronize\b"
    r"|^zeEventHostSynchronize|^urQueueFinish",
    re.IGNORECASE,
)
INPUT = re.compile(
    r"DataLoader.*__next__|enumerate\(DataLoader\)|DataLoaderIter|IteratorGetNext|Iterator::GetNext|get_next_batch"
    r"|\[pl\].*(train_dataloader_next|train_next|fetch_next)|get_train_batch|_next_data\b|_try_get_data\b"
    r"|PrefetchIterator|dataloader.*next",
    re.IGNORECASE,
)
"""What loaders call waiting for a batch: torch's before and after 1.9, Lightning's, TorchRec's, TensorFlow's."""

STEP = re.compile(
    r"^\[?(?:ProfilerStep|ProfileStep|Profiler Step|train_step|TrainStep|train step|step)[#_ :]?\s*(\d+)\]?$"
)
ROUTE = re.compile(
    r"\b([HDAP]to[HDAP])\b|(Host|Device|Pageable|Pinned|Unified)To(Host|Device|Pageable|Pinned)", re.IGNORECASE
)


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
INPUT_SIGNS = ("next", "dataloader", "get_train_batch", "_get_data", "prefetchiterator")
"""One of them is in every name that `INPUT` matches: a quick look before the slow one."""


def kernel_kind(name: str) -> Kind:
    """Of a kernel on a device."""
    return Kind.COMMUNICATION if EXCHANGE.search(name[:TELLING]) else Kind.KERNEL


def call_kind(name: str) -> Kind:
    """Of a call into the driver or its library."""
    if SYNC.search(name):
        return Kind.SYNC
    return Kind.LAUNCH if LAUNCH.search(name) else Kind.CALL


def span_kind(name: str, otherwise: Kind = Kind.SPAN) -> Kind:
    """Of a named range or an operator on the host."""
    named = otherwise == Kind.SPAN and NAMED_INPUT.fullmatch(name) is not None
    return Kind.INPUT if named or is_input(name) else otherwise


def is_input(name: str) -> bool:
    """Whether a range stands for waiting for the next batch."""
    lowered = name.lower()
    return any(sign in lowered for sign in INPUT_SIGNS) and INPUT.search(name) is not None


def step_number(name: str) -> int | None:
    """The number in the name of a step's range; None where it is no step."""
    match = STEP.match(name)
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
