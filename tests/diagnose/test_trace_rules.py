"""Rules on what only traces tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import HIDDEN_INPUT, gain_of
from nearpeak.diagnose.rules import copy_wait, host_bound, precision_of_kernels, straggler
from nearpeak.diagnose.trace_facts import KernelFacts, TraceFacts, TraceRank


def facts(compute: int = 90, copy: int = 0, host_work: int = 0, **trace: Any) -> Facts:
    idle = {"host_work": host_work, "other": 100 - compute - copy - host_work}
    parts = Breakdown(window_ns=100, compute_ns=compute, communication_ns=0, copy_ns=copy, idle_ns=idle)
    return Facts(source="a trace", steps=1, step_ms=10.0, breakdown=parts, trace=TraceFacts(**trace))


def kernel(time_ns: int, family: str = "matrix", uses: bool = False, number_format: str = "fp32") -> KernelFacts:
    return KernelFacts(
        name="k", family=family, uses_tensor_cores=uses, number_format=number_format, count=1, time_ns=time_ns
    )


V100: dict[str, Any] = {
    "compute_capability": (7, 0),
    "device_name": "Tesla V100",
    "kernels": (kernel(60), kernel(40, "elementwise")),
    "tensor_core_share": 0.0,
    "product_share": 0.6,
}


def test_fp32_products_beside_tensor_cores() -> None:
    (finding,) = precision_of_kernels.find(facts(**V100))
    assert (finding.kind, finding.severity) == ("precision", "warning")
    assert "54 % of the step" in finding.title and "GradScaler" in finding.remedy
    assert finding.gain is not None and finding.gain.high == pytest.approx(0.54 * 0.85)
    (newer,) = precision_of_kernels.find(facts(**{**V100, "compute_capability": (8, 0), "device_name": "A100"}))
    assert "bfloat16" in newer.remedy


MI250: dict[str, Any] = {**V100, "compute_capability": (9, 0), "device_name": "AMD Instinct MI250X"}


def test_on_amd_fp32_counts_on_matrix_cores_too() -> None:
    """Numbers that look like Hopper's say nothing of an AMD device: its name does."""
    (finding,) = precision_of_kernels.find(facts(**MI250))
    assert "matrix cores could do in 16 bits" in finding.title
    assert "float32_matmul" not in finding.remedy and "Tensor" not in finding.title + finding.verify
    used = {**MI250, "kernels": (kernel(60, uses=True), kernel(40, "elementwise")), "tensor_core_share": 1.0}
    assert precision_of_kernels.find(facts(**used))
    assert not precision_of_kernels.find(facts(**{**MI250, "device_name": "AMD Instinct MI50"}))
    nameless = replace(MI250["kernels"][0], name="Cijk_Ailk_Bljk_SB_MT64x64x16_SN")
    assert not precision_of_kernels.find(facts(**{**MI250, "device_name": None, "kernels": (nameless,)}))


def test_where_the_device_idles_too_precision_stands_below() -> None:
    (finding,) = precision_of_kernels.find(facts(compute=60, **V100))
    assert finding.severity == "info"


@pytest.mark.parametrize(
    "change",
    [
        {"compute_capability": (6, 1)},
        {"compute_capability": None},
        {"compute_capability": (7, 5), "device_name": "NVIDIA GeForce GTX 1660 Ti"},
        {"kernels": (kernel(60, uses=True), kernel(40, "elementwise"))},
        {"kernels": (kernel(60, number_format="fp64"), kernel(40, "elementwise"))},
        {"kernels": (kernel(5), kernel(95, "elementwise"))},
    ],
)
def test_where_tensor_cores_are_used_absent_or_no_matter_nothing_is_said(change: dict[str, Any]) -> None:
    assert precision_of_kernels.find(facts(**{**V100, **change})) == []


def ranks(*cost_ms: float) -> tuple[TraceRank, ...]:
    return tuple(TraceRank(source="", rank=n, device=0, step_ms=10, cost_ms=cost) for n, cost in enumerate(cost_ms))


@pytest.mark.parametrize(
    ("cost_ms", "late"),
    [((0, 0, 9, 0), "2"), ((0, 5, 0, 6, 0, 0, 0, 1), "3, 1"), ((4, 4, 4, 4), "0, 1"), ((0, 3), "1")],
)
def test_late_ranks_are_named(cost_ms: tuple[float, ...], late: str) -> None:
    (finding,) = straggler.find(facts(ranks=ranks(*cost_ms), waiting_share=0.3))
    assert {each.name: each.value for each in finding.evidence}["late_ranks"] == late
    assert finding.gain is not None and finding.gain.high == pytest.approx(0.3)
    assert straggler.find(facts(ranks=ranks(*cost_ms), waiting_share=0.05)) == []


def test_devices_of_one_process_are_named_by_number() -> None:
    same = tuple(replace(each, rank=0, device=n) for n, each in enumerate(ranks(0, 9)))
    (finding,) = straggler.find(facts(ranks=same, waiting_share=0.3))
    assert "GPU 1 (9.0 ms a step)" in finding.title


@pytest.mark.parametrize(
    ("copies", "pageable", "told"),
    [
        ({"HtoD pageable": 9, "DtoD": 1}, 0.9, "pageable memory"),
        ({"HtoD": 9}, 0.0, "to the device"),
        ({"DtoH": 9}, 0.0, "from the device"),
        ({"DtoD": 9}, 0.0, "within the device"),
        ({"PtoP": 9}, 0.0, "between devices"),
    ],
)
def test_copies_by_route(copies: dict[str, int], pageable: float, told: str) -> None:
    (finding,) = copy_wait.find(facts(compute=80, copy=10, exposed_copy_ns=copies, pageable_share=pageable))
    assert told in finding.title


def test_host_work_names_its_place() -> None:
    (finding,) = host_bound.find(facts(compute=50, host_work=40, host_places=(("images.py(3): resize", 0.3),)))
    assert "images.py(3): resize" in finding.title
    (finding,) = host_bound.find(facts(compute=50, host_work=40, host_places=(("small", 0.05),)))
    assert "small" not in finding.title


@pytest.mark.parametrize(("ceiling", "measured"), [(22.9, (8.9, 16.7)), (33.4, (20.6, 28.6)), (21.0, (18.7, 21.4))])
def test_published_pairs_lie_within_the_interval(ceiling: float, measured: tuple[float, float]) -> None:
    """Predicted ceiling against mean and median; a median may pass the ceiling by the noise of a few steps."""
    gain = gain_of(ceiling / 100, HIDDEN_INPUT)
    assert all(gain.low <= each / 100 <= gain.high * 1.02 for each in measured)
