"""Names of several generations, vendors and frameworks."""

from __future__ import annotations

import pytest

from nearpeak.trace.kinds import call_kind, copy_route, is_input, is_pageable, kernel_kind, span_kind, step_number
from nearpeak.trace.timeline import Kind


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "rccl_main_kernel(ncclDevComm*)",
        "void vllm::cross_device_reduce_1stage<float, 8>()",
    ],
)
def test_exchange_kernels(name: str) -> None:
    assert kernel_kind(name) == Kind.COMMUNICATION


@pytest.mark.parametrize("name", ["volta_sgemm_128x64_nn", "Cijk_Ailk_Bljk_BBS_BH_MT128x128", "reduce_kernel<512>"])
def test_kernels_that_compute(name: str) -> None:
    assert kernel_kind(name) == Kind.KERNEL


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", Kind.LAUNCH),
        ("cudaLaunchKernelExC", Kind.LAUNCH),
        ("cuLaunchKernelEx", Kind.LAUNCH),
        ("cudaGraphLaunch", Kind.LAUNCH),
        ("cudaLaunchCooperativeKernel", Kind.LAUNCH),
        ("cudaMemcpyAsync", Kind.LAUNCH),
        ("cudaMemsetAsync", Kind.LAUNCH),
        ("hipLaunchKernel", Kind.LAUNCH),
        ("hipExtModuleLaunchKernel", Kind.LAUNCH),
        ("hipMemcpyWithStream", Kind.LAUNCH),
        ("hipGraphLaunch", Kind.LAUNCH),
        ("cudaDeviceSynchronize", Kind.SYNC),
        ("cudaStreamSynchronize_v3020", Kind.SYNC),
        ("cuCtxSynchronize", Kind.SYNC),
        ("hipEventSynchronize", Kind.SYNC),
        ("cudaEventQuery", Kind.CALL),
        ("cudaStreamWaitEvent", Kind.CALL),
        ("hipDevicePrimaryCtxGetState", Kind.CALL),
        ("cudaMalloc", Kind.CALL),
    ],
)
def test_calls(name: str, kind: Kind) -> None:
    assert call_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("DataLoader", False),
        ("aten::copy_", False),
        ("IteratorGetNext", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("## wait_for_batch ##", False),
        ("torch/utils/data/dataloader.py(733): __next__", True),
        ("## next_batch ##", False),
    ],
)
def test_waiting_for_input(name: str, waits: bool) -> None:
    assert is_input(name) is waits


@pytest.mark.parametrize(
    ("name", "route", "pageable"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", True),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", False),
        ("Memcpy DtoD (Device -> Device)", "DtoD", False),
        ("CopyHostToDevice", "HtoD", False),
        ("Memcpy PtoP (Device -> Device)", "PtoP", False),
        ("hipMemcpy", "unknown", False),
    ],
)
def test_copies(name: str, route: str, pageable: bool) -> None:
    assert (copy_route(name), is_pageable(name)) == (route, pageable)


@pytest.mark.parametrize(
    ("name", "number"), [("ProfilerStep#16", 16), ("ProfilerStep*", None), ("train 3", None), ("aten::add", None)]
)
def test_steps(name: str, number: int | None) -> None:
    assert step_number(name) == number


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("load_batch", True),
        ("data loading", True),
        ("Data Loading 12", True),
        ("get_next_batch", True),
        ("dataload", True),
        ("wait for data", True),
        ("batch 7", False),
        ("data", False),
        ("load_model", False),
        ("train_batch", False),
        ("forward", False),
    ],
)
def test_ranges_that_users_name_after_their_input(name: str, waits: bool) -> None:
    assert (span_kind(name, Kind.SPAN) == Kind.INPUT) is waits
    if name == "load_batch":
        assert span_kind(name, Kind.OP) == Kind.OP  # an operator of that name is none
