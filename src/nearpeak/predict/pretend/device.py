"""The pretend device: a backend of torch (`PrivateUse1`) whose tensors have shapes and no data."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch

from nearpeak.errors import UnsupportedError

__all__ = ["DEVICE", "fake_kernels", "prepare"]

DEVICE = "pretend"
_LIBRARIES: list[torch.library.Library] = []
"""Registrations last as long as their library object."""


class _Backend:
    """What torch asks a device's module for."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        return None

    manual_seed = manual_seed_all

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, *_: Any) -> None:
        return None

    def synchronize(self, *_: Any) -> None:
        return None

    def _lazy_init(self) -> None:
        return None

    def device(self, _: Any) -> Any:
        return contextlib.nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def prepare() -> None:
    """Register the device with torch, once in a process that is used for nothing else."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as register
    except ImportError:
        raise UnsupportedError(
            f"torch {torch.__version__} cannot run a model on a device without data; predicting memory needs torch 2.9 "
            "or later."
        ) from None
    register(DEVICE, backend_module=_backend_module())
    fake_kernels()
    _skip_device_initialisation()
    _dispatch_at_once()
    _know_fake_parameters()


def _backend_module() -> Any:
    from torch.utils import backend_registration

    class Backend(_Backend, backend_registration._DummyBackendModule):
        """torch checks for its own class."""

    return Backend()


def fake_kernels() -> None:
    """Claim operators that are one kernel on real devices and would be taken apart on an unknown one."""
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _LIBRARIES.append(library)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        single = has_kernel(name, "CPU") and has_kernel(name, "CompositeImplicitAutograd")
        if single and not has_kernel(name, "PrivateUse1"):
            library.impl(name.removeprefix("aten::"), _no_data)


def _no_data(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a tensor of the pretend device has no data")


def _skip_device_initialisation() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode.avoid_device_init = property(lambda self: True)  # type: ignore[assignment,method-assign]


def _dispatch_at_once() -> None:
    """Each operator passes a guard against being compiled, twice; nothing is compiled here."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    guarded = FakeTensorMode.__torch_dispatch__
    FakeTensorMode.__torch_dispatch__ = getattr(guarded, "__wrapped__", guarded)  # type: ignore[method-assign]


def _know_fake_parameters() -> None:
    """Optimizers take their multi-tensor path on devices by the exact type of the parameters."""
    from torch._subclasses.fake_tensor import FakeTensor

    optimizer = importlib.import_module("torch.optim.optimizer")
    supported = getattr(optimizer, "_foreach_supported_types", None)
    if isinstance(supported, list) and FakeTensor not in supported:
        supported.append(FakeTensor)
