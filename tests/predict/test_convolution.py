"""What convolutions take beside their results, held against single convolutions measured on an H200 (MB)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nearpeak.predict.pretend.convolution import is_own_kernel, workspaces
from nearpeak.predict.pretend.hidden import HiddenMemory

aten = torch.ops.aten
HOPPER, TURING = (9, 0), (7, 5)


def convolution(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, *, last: bool = False) -> Any:
    """(forward, backward): operator, arguments, results. The shape says samples, channels in and out, side of the
    image, width of the kernel, stride and groups."""
    samples, channels, made, side, width, stride, groups = shape
    form: Any = {"memory_format": torch.channels_last if last else torch.contiguous_format}
    tensor = torch.empty(samples, channels, side, side, dtype=dtype, device="meta").contiguous(**form)
    weight = torch.empty(made, channels // groups, width, width, dtype=dtype, device="meta")
    padding = [0 if width == stride else width // 2] * 2
    shared = ([stride] * 2, padding, [1, 1], False, [0, 0], groups)
    result = torch.nn.functional.conv2d(tensor, weight, None, stride, padding[0], 1, groups)
    forward = (aten.convolution.default, (tensor, weight, None, *shared), [result])
    arguments = (result, tensor, weight, None, *shared, [True, True, False])
    return forward, (aten.convolution_backward.default, arguments, [tensor, weight])


def taken_mb(call: Any, capability: tuple[int, int] = HOPPER) -> float:
    return max(workspaces(*call, capability), default=0) / 1e6


MEASURED = [
    ((64, 64, 64, 56, 3, 1, 1), torch.float32, 102.9, 105.0),
    ((64, 128, 256, 56, 3, 2, 1), torch.float32, 155.3, 163.6),
    ((16, 128, 128, 56, 3, 1, 32), torch.float32, 52.4, 52.4),
    ((64, 3, 64, 224, 7, 2, 1), torch.float32, 244.1, 263.0),
    ((64, 3, 32, 224, 3, 2, 1), torch.float32, 0.0, 0.0),
    ((64, 256, 64, 56, 1, 1, 1), torch.float32, 0.0, 4.2),
    ((64, 1024, 2048, 7, 1, 1, 1), torch.float32, 38.5, 38.5),
    ((64, 96, 96, 56, 7, 1, 96), torch.float32, 0.0, 0.0),
    ((64, 64, 64, 56, 3, 1, 1), torch.bfloat16, 52.4, 53.4),
]


@pytest.mark.parametrize(("shape", "dtype", "forward_mb", "backward_mb"), MEASURED)
def test_copies_for_tensor_cores_are_those_measured(
    shape: tuple[int, ...], dtype: torch.dtype, forward_mb: float, backward_mb: float
) -> None:
    forward, backward = convolution(shape, dtype)
    assert taken_mb(forward) == pytest.approx(forward_mb, rel=0.25, abs=1)
    assert taken_mb(backward) == pytest.approx(backward_mb, rel=0.35, abs=5)


def test_the_weights_gradient_asks_for_more_than_the_inputs_gave_back() -> None:
    _, backward = convolution((8, 64, 64, 28, 3, 1, 1))
    of_input, of_weight = workspaces(*backward, HOPPER)
    assert of_weight - of_input == 4 << 20


def test_channels_last_need_no_copies() -> None:
    assert all(taken_mb(call) == 0 for call in convolution((8, 64, 64, 28, 3, 1, 1), last=True))


def test_without_tensor_cores_the_weights_gradient_alone_takes_memory() -> None:
    forward, backward = convolution((64, 64, 64, 56, 3, 1, 1))
    assert taken_mb(forward, TURING) == 0
    assert taken_mb(backward, TURING) == pytest.approx(329.3, rel=0.02)
    half, _ = convolution((64, 64, 64, 56, 3, 1, 1), torch.float16)
    assert taken_mb(half, TURING) > 0


def test_only_gradients_that_are_made_take_memory() -> None:
    _, (operator, arguments, results) = convolution((8, 64, 64, 28, 3, 1, 1))
    assert len(workspaces(operator, (*arguments[:-1], [False, True, False]), results[1:], HOPPER)) == 1


def test_torchs_own_kernels_are_never_tried() -> None:
    hidden = HiddenMemory(HOPPER, tries_algorithms=True)
    (depthwise, arguments, _), _ = convolution((8, 64, 64, 28, 3, 1, 64))
    assert is_own_kernel(depthwise, arguments)
    assert not hidden.empties_cache(depthwise, arguments)
    (plain, arguments, _), _ = convolution((8, 64, 64, 28, 3, 1, 1))
    assert hidden.empties_cache(plain, arguments)
    assert not hidden.empties_cache(plain, arguments)
