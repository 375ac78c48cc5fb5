"""Tensors and nested state come back exactly, or are refused by name."""

from __future__ import annotations

import collections
import enum
import errno
import math
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nearpeak.errors import StorageError
from nearpeak.train.durable import hash_file
from nearpeak.train.nested import decode_document, encode_document
from nearpeak.train.snapshot import (
    Buffer,
    flatten_state,
    plan,
    read,
    restore_rng,
    rng_state,
    stage,
    unflatten_state,
    write,
)

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHTS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
DTYPES = [*FLOATS, *EIGHTS, *INTEGERS, torch.bool, torch.complex64]


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bits at all, so NaNs with payloads too; only bool has bits that mean nothing."""
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    return bits.view(dtype).view(shape)


def saved(path: Path, tensors: dict[str, torch.Tensor], buffer: Buffer | None = None) -> Path:
    buffer = buffer or Buffer()
    layout = plan(tensors)
    buffer.fit(layout)
    stage(tensors, layout, buffer)
    record = write(path / "t.safetensors", layout, buffer)
    assert record == hash_file(path / "t.safetensors")
    return path / "t.safetensors"


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


# -- files -------------------------------------------------------------------------------------------------------------


def test_every_type_and_shape_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        f"{str(dtype)[6:]}{shape}": random_tensor(dtype, *shape)
        for dtype in DTYPES
        for shape in ((), (3,), (2, 5), (0, 4), (1, 1, 7))
    }
    path = saved(tmp_path, tensors)
    ours, theirs = read(path), safetensors.torch.load_file(path)
    assert set(ours) == set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        assert same(ours[name], tensor), name
        assert same(theirs[name], tensor), name


def test_no_tensors_at_all(tmp_path: Path) -> None:
    assert read(saved(tmp_path, {})) == {}


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=12),
    st.integers(0, 3),
)
@settings(max_examples=60)
def test_layouts_have_no_holes(shapes: list[tuple[torch.dtype, list[int]]], more: int) -> None:
    tensors = {f"t{i}": torch.empty(shape, dtype=dtype) for i, (dtype, shape) in enumerate(shapes)}
    layout = plan(tensors, {"note": "é" * more})
    assert len(layout.header) % 4096 == 0
    end = len(layout.header)
    for place in layout.places:
        assert place.begin == end
        assert (place.begin - len(layout.header)) % tensors[place.name].element_size() == 0
        end += place.bytes
    assert end == layout.total_bytes <= layout.buffer_bytes < layout.total_bytes + 4096


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(100, 100))
    path = saved(tmp_path, {"embedding": weight, "head": weight, "copy": weight.detach().clone()})
    assert path.stat().st_size < 2.5 * weight.nbytes
    found = read(path)
    assert found["head"] is found["embedding"]
    assert found["copy"] is not found["embedding"]
    assert set(safetensors.torch.load_file(path)) == {"embedding", "copy"}


def test_what_looks_tied_but_is_not(tmp_path: Path) -> None:
    """Transposes, conjugates and parts share memory and are other tensors."""
    base = torch.arange(9.0).view(3, 3)
    wave = torch.randn(4, dtype=torch.complex64)
    tensors = {"a": base, "b": base.t(), "c": base[1:], "w": wave, "v": wave.conj(), "e1": base[:0], "e2": base[:0]}
    found = read(saved(tmp_path, tensors))
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor), name


def test_order_in_memory_comes_back(tmp_path: Path) -> None:
    tensors = {
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(4, 6).t(),
        "sliced": torch.randn(8, 8)[::2, 1:5],
        "expanded": torch.randn(1, 4).expand(3, 4),
    }
    found = read(saved(tmp_path, tensors))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert found["last"].stride() == tensors["last"].stride()
    assert found["transposed"].stride() == tensors["transposed"].stride()
    assert found["sliced"].is_contiguous()
    assert found["expanded"].is_contiguous()


def test_each_tensor_read_is_its_own(tmp_path: Path) -> None:
    found = read(saved(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)}))
    assert found["a"].untyped_storage().nbytes() == 16
    version = found["b"]._version
    found["a"].add_(1)
    assert found["b"]._version == version


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.eye(3).to_sparse(), "tensor model.w: sparse_coo float32 cannot be stored; make it dense"),
        (torch.zeros(2, dtype=torch.complex128), "complex128 cannot be stored"),
        (torch.ones(2, device="meta"), "on the meta device and holds nothing"),
    ],
)
def test_what_a_file_cannot_hold_is_named(tensor: torch.Tensor, told: str) -> None:
    with pytest.raises(StorageError, match=told):
        plan({"model.w": tensor})


def test_a_buffer_is_reused_and_grows(tmp_path: Path) -> None:
    buffer = Buffer()
    for folder, size in enumerate((50_000, 10, 200_000)):
        (tmp_path / str(folder)).mkdir()
        tensors = {"a": torch.randn(size), "b": torch.randn(3)}
        address = buffer.bytes.data_ptr()
        found = read(saved(tmp_path / str(folder), tensors, buffer))
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
        assert (buffer.bytes.data_ptr() == address) == (size == 10)


def test_staging_of_some_leaves_the_others() -> None:
    tensors = {"a": torch.ones(3), "b": torch.ones(3)}
    layout, buffer = plan(tensors), Buffer()
    buffer.touch(layout)
    stage(tensors, layout, buffer, ["b"])
    assert {place.name: float(buffer.view(place).sum()) for place in layout.places} == {"a": 0.0, "b": 3.0}


def test_forked_workers_do_not_share_the_buffer() -> None:
    """They see zeros: pages that were shared would be copied when the next save writes to them."""
    tensors, buffer = {"a": torch.ones(100_000)}, Buffer()
    layout = plan(tensors)
    buffer.fit(layout)
    stage(tensors, layout, buffer)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, str(int(buffer.bytes.any())).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 20) == b"0"
    assert torch.equal(buffer.view(layout.places[0]), tensors["a"])
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("where", ["open", "write"])
def test_file_systems_without_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """tmpfs and others refuse at opening or at the first write."""
    real_open, real_write, direct = os.open, os.write, set[int]()

    def refusing_open(path: Any, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT and where == "open":
            raise OSError(errno.EINVAL, "no direct writes here")
        descriptor = real_open(path, flags, *rest)
        direct.discard(descriptor)
        if flags & os.O_DIRECT:
            direct.add(descriptor)
        return descriptor

    def refusing_write(descriptor: int, content: Any) -> int:
        if descriptor in direct:
            raise OSError(errno.EINVAL, "no direct writes here")
        return real_write(descriptor, content)

    monkeypatch.setattr(os, "open", refusing_open)
    if where == "write":
        monkeypatch.setattr(os, "write", refusing_write)
    tensors = {"a": torch.randn(5000)}
    assert torch.equal(read(saved(tmp_path, tensors))["a"], tensors["a"])


def test_an_error_while_writing_ends_the_hashing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):  # the test's own guard sees a thread that stays
        saved(tmp_path, {"a": torch.randn(10_000_000)})


@pytest.mark.parametrize(
    ("size", "told"),
    [(0, "ends inside a|not a safetensors"), (5, "not a safetensors"), (4000, "not a safetensors"), (4100, "inside a")],
)
def test_a_cut_file_is_no_state(tmp_path: Path, size: int, told: str) -> None:
    path = saved(tmp_path, {"a": torch.randn(100)})
    os.truncate(path, size)
    with pytest.raises(StorageError, match=told):
        read(path)


# -- nested state ------------------------------------------------------------------------------------------------------


def round_trip(state: Any) -> Any:
    tensors, document = flatten_state(state)
    return unflatten_state(decode_document(encode_document(document)), tensors)


def identical(a: Any, b: Any) -> bool:
    """Equal in type, order, sign of zero and bits of NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return identical((a.real, a.imag), (b.real, b.imag))
    if isinstance(a, dict):
        return len(a) == len(b) and all(identical(x, y) and identical(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


keys = st.one_of(st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text()))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.complex_numbers(),
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(st.sampled_from(["$", "a", "a.b", "name"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(states)
@settings(max_examples=300)
def test_plain_values_come_back_identical(state: Any) -> None:
    assert identical(round_trip(state), state)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        struct.unpack(">d", bytes.fromhex("7ff8000000000abc"))[0],
        -float("inf"),
        -0.0,
        5e-324,
        0.1 + 0.2,
        2**200,
        {1, 2, 3},
        frozenset({"a"}),
        collections.OrderedDict([(2, "b"), (1, "a")]),
        collections.Counter({3: 2, 7: 1}),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda", 1),
        "\ud800",
    ],
    ids=repr,
)
def test_values_that_are_easily_lost(value: Any) -> None:
    assert identical(round_trip([value])[0], value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.array(3.5),
        np.empty((0, 2), np.float16),
        np.arange(5, dtype=">i8"),
        np.array(["ab", "c"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.arange(8)[::2],
    ],
    ids=repr,
)
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    back = round_trip({"a": array})["a"]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("scalar", [np.float64(0.1), np.int8(-3), np.bool_(True), np.float32("inf")], ids=repr)
def test_scalars_of_numpy_keep_their_type(scalar: Any) -> None:
    back = round_trip([scalar])[0]
    assert type(back) is type(scalar)
    assert back == scalar


def test_tensors_are_named_by_path_and_one_object_stays_one() -> None:
    shared, other = torch.ones(2), torch.zeros(3)
    state = {"a": {"b": shared}, "a.b": other, "again": [shared], 7: (other.clone(),)}
    tensors, _ = flatten_state(state, "run")
    assert list(tensors) == ["run.a.b", "run.a.b#2", "run.7.0"]
    assert tensors["run.a.b"] is shared
    back = round_trip(state)
    assert back["again"][0] is back["a"]["b"]
    assert torch.equal(back[7][0], other)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Meter:
    pass


class Mapping(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    "value",
    [Colour.RED, Level.HIGH, Meter(), len, lambda: 0, Mapping(), collections.defaultdict(list), np.array([object()])],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_come_back_is_refused_by_path(value: Any) -> None:
    kind = "ndarray" if isinstance(value, np.ndarray) else type(value).__qualname__
    with pytest.raises(StorageError, match=rf"state at optimizer\.groups\.1\.x: a .*{kind} cannot be saved exactly"):
        flatten_state({"optimizer": {"groups": [0, {"x": value}]}})


def test_cycles_and_tensor_keys_are_refused() -> None:
    endless: list[Any] = []
    endless.append({"again": endless})
    with pytest.raises(StorageError, match=r"state at a\.0\.again: it contains itself"):
        flatten_state({"a": endless})
    with pytest.raises(StorageError, match="state at a: a tensor is a key"):
        flatten_state({"a": {torch.ones(1): 1}})


def test_one_list_in_two_places_is_no_cycle() -> None:
    inner = [1]
    assert round_trip([inner, inner]) == [[1], [1]]


def test_a_document_that_does_not_fit() -> None:
    with pytest.raises(StorageError, match="its tensor 'a' is not in the file"):
        unflatten_state({"$": "tensor", "name": "a"}, {})
    with pytest.raises(StorageError, match="'hologram' is unknown"):
        unflatten_state([{"$": "hologram"}], {})


OPTIMIZERS = [
    lambda p: torch.optim.AdamW(p, lr=1e-2),
    lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=True),
    lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), fused=True),
    lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    lambda p: torch.optim.Adagrad(p),
    lambda p: torch.optim.RMSprop(p, centered=True),
    lambda p: torch.optim.NAdam(p),
    lambda p: torch.optim.Rprop(p),
    lambda p: torch.optim.Adafactor(p),
    lambda p: torch.optim.LBFGS(p, max_iter=2),
]
SCHEDULES = [
    lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5]),
    lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
]


def trained(make: Any, schedule: Any, steps: int, state: Any = None) -> tuple[Any, list[torch.Tensor]]:
    """Some steps from a fixed start, or from a state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    optimizer = make(model.parameters())
    if not isinstance(optimizer, torch.optim.LBFGS):  # which cannot view gradients of another order
        model.to(memory_format=torch.channels_last)
    plan_of = schedule(optimizer)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        plan_of.load_state_dict(state["schedule"])
    data = torch.randn(40, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    first = 0 if state is None else state["step"]
    for step in range(first, first + steps):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(data[step : step + 4]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        plan_of.step()
    made = {"model": model, "optimizer": optimizer, "schedule": plan_of}
    states = {name: each.state_dict() for name, each in made.items()} | {"step": first + steps}
    return states, list(model.parameters())


@pytest.mark.parametrize("make", OPTIMIZERS, ids=range(len(OPTIMIZERS)))
def test_optimizers_go_on_bit_for_bit(tmp_path: Path, make: Any) -> None:
    goes_on_exactly(tmp_path, make, SCHEDULES[0])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=range(len(SCHEDULES)))
def test_schedules_go_on_bit_for_bit(tmp_path: Path, schedule: Any) -> None:
    goes_on_exactly(tmp_path, lambda p: torch.optim.SGD(p, lr=0.1), schedule)


def goes_on_exactly(tmp_path: Path, make: Any, schedule: Any) -> None:
    _, expected = trained(make, schedule, 8)
    state, _ = trained(make, schedule, 4)
    tensors, document = flatten_state(state)
    back = unflatten_state(decode_document(encode_document(document)), read(saved(tmp_path, tensors)))
    _, weights = trained(make, schedule, 4, back)
    assert all(torch.equal(a, b) for a, b in zip(expected, weights, strict=True))


# -- random numbers ----------------------------------------------------------------------------------------------------


def draws() -> tuple[Any, ...]:
    return random.random(), random.gauss(), np.random.rand(), np.random.normal(), torch.rand(3).tolist()


def test_random_states_go_on(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draws()  # leaves half a pair of normal numbers in both generators
    tensors, document = flatten_state({"rng": rng_state()})
    expected = [draws() for _ in range(3)]
    read_back = read(saved(tmp_path, tensors))
    restore_rng(unflatten_state(decode_document(encode_document(document)), read_back)["rng"])
    assert [draws() for _ in range(3)] == expected


def test_a_state_taken_does_not_move_on() -> None:
    tensors, document = flatten_state(rng_state())
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    encoded = encode_document(document)
    draws()
    assert all(torch.equal(before[name], tensors[name]) for name in before)
    assert encode_document(document) == encoded
