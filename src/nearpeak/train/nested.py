"""Nested state ↔ JSON and tensors, exactly: optimizer and schedule state, random states. Nothing is ever unpickled.

What JSON has stays itself; anything else becomes an object with the key `$`. A value that cannot come back exactly is
refused with its path, instead of being saved as something similar.
"""

from __future__ import annotations

import base64
import collections
import json
import math
import random
import struct
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from nearpeak.errors import StorageError

__all__ = ["decode_document", "encode_document", "flatten_state", "restore_rng", "rng_state", "unflatten_state"]

TAG = "$"
Json = Any


# -- to JSON -----------------------------------------------------------------------------------------------------------


def flatten_state(state: Any, prefix: str = "") -> tuple[dict[str, torch.Tensor], Json]:
    """Tensors by path and a JSON document that says where each belongs; tensors are not copied.

    >>> tensors, document = flatten_state({"step": 3, "moments": [torch.zeros(2)]})
    >>> sorted(tensors), document["step"]
    (['moments.0'], 3)
    """
    flattening = _Flattening()
    document = flattening.visit(state, prefix)
    return flattening.tensors, document


class _Flattening:
    """One pass over a state."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._open: set[int] = set()

    def visit(self, value: Any, path: str) -> Json:
        if isinstance(value, torch.Tensor):
            return {TAG: "tensor", "name": self._name_of(value, path)}
        convert = _LEAVES.get(type(value))
        if convert is not None:
            return convert(value)
        numpy = _numpy_leaf(value)
        if numpy is not None:
            return numpy
        if type(value) not in _CONTAINERS:
            raise StorageError(_refusal(value, path))
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Json:
        if id(value) in self._open:
            raise StorageError(f"state at {path or 'its top'}: it contains itself and cannot be saved.")
        self._open.add(id(value))
        try:
            return self._mapping(value, path) if isinstance(value, dict) else self._sequence(value, path)
        finally:
            self._open.discard(id(value))

    def _sequence(self, value: Sequence[Any], path: str) -> Json:
        items = [self.visit(item, _below(path, index)) for index, item in enumerate(value)]
        return items if type(value) is list else {TAG: _CONTAINERS[type(value)], "items": items}

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Json:
        if type(value) is dict and all(type(key) is str and key != TAG for key in value):
            return {key: self.visit(item, _below(path, key)) for key, item in value.items()}
        pairs = [[self._key(key, path), self.visit(item, _below(path, key))] for key, item in value.items()]
        return {TAG: _CONTAINERS[type(value)], "pairs": pairs}

    def _key(self, key: Any, path: str) -> Json:
        if isinstance(key, torch.Tensor):
            raise StorageError(f"state at {path or 'its top'}: a tensor is a key; keys must be plain values.")
        return self.visit(key, f"{path}[key]")

    def _name_of(self, tensor: torch.Tensor, path: str) -> str:
        """One name per tensor object: what was one object comes back as one."""
        name = self._names.get(id(tensor))
        if name is None:
            name = self._free_name(path or "tensor")
            self._names[id(tensor)] = name
            self.tensors[name] = tensor
        return name

    def _free_name(self, path: str) -> str:
        name, count = path, 1
        while name in self.tensors:
            count += 1
            name = f"{path}#{count}"
        return name


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _refusal(value: Any, path: str) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return (
        f"state at {path or 'its top'}: a {kind} cannot be saved exactly. Give it a state_dict() of plain values "
        "(numbers, strings, lists, dictionaries, tensors, arrays)."
    )


def _float(value: float) -> Json:
    """JSON has no infinity; a NaN keeps its bits."""
    return value if math.isfinite(value) else {TAG: "float", "bits": struct.pack(">d", value).hex()}


def _bytes(value: bytes) -> Json:
    return {TAG: "bytes", "base64": base64.b64encode(value).decode()}


def _torch_name(value: Any) -> Json:
    return {TAG: "torch", "name": str(value).removeprefix("torch.")}


def _same(value: Any) -> Json:
    return value


_LEAVES: dict[type, Callable[[Any], Json]] = {
    type(None): _same,
    bool: _same,
    int: _same,
    str: _same,
    float: _float,
    complex: lambda value: {TAG: "complex", "parts": [_float(value.real), _float(value.imag)]},
    bytes: _bytes,
    torch.dtype: _torch_name,
    torch.device: lambda value: {TAG: "device", "name": str(value)},
}
_CONTAINERS: dict[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    torch.Size: "size",
    dict: "dict",
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
}


def _numpy_leaf(value: Any) -> Json | None:
    """Arrays and scalars by their bytes; None if it is neither."""
    import numpy as np

    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        return None
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.fields is not None:
        return None
    content = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    kind = "array" if type(value) is np.ndarray else "scalar"
    return {TAG: kind, "dtype": array.dtype.str, "shape": list(array.shape), "base64": content}


# -- and back ----------------------------------------------------------------------------------------------------------


def unflatten_state(document: Json, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `flatten_state` took apart; the tensors are those given, not copies."""
    if isinstance(document, list):
        return [unflatten_state(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    kind = document.get(TAG)
    if kind is None:
        return {key: unflatten_state(item, tensors) for key, item in document.items()}
    if kind == "tensor":
        return _tensor(document["name"], tensors)
    if kind in _BUILD_LEAF:
        return _BUILD_LEAF[kind](document)
    if kind in _BUILD_SEQUENCE:
        return _BUILD_SEQUENCE[kind](unflatten_state(item, tensors) for item in document["items"])
    if kind in _BUILD_MAPPING:
        return _fill(_BUILD_MAPPING[kind](), document["pairs"], tensors)
    raise StorageError(f"state: {kind!r} is unknown to this version of nearpeak; upgrade it.")


def _tensor(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if name not in tensors:
        raise StorageError(f"state: its tensor {name!r} is not in the file of tensors.")
    return tensors[name]


def _fill(
    mapping: MutableMapping[Any, Any], pairs: list[Any], tensors: Mapping[str, torch.Tensor]
) -> MutableMapping[Any, Any]:
    for key, value in pairs:
        mapping[unflatten_state(key, tensors)] = unflatten_state(value, tensors)
    return mapping


def _number(value: Json) -> float:
    return struct.unpack(">d", bytes.fromhex(value["bits"]))[0] if isinstance(value, dict) else value


def _array(document: Json) -> Any:
    import numpy as np

    content = base64.b64decode(document["base64"])
    return np.frombuffer(content, dtype=np.dtype(document["dtype"])).reshape(document["shape"]).copy()


_BUILD_LEAF: dict[str, Callable[[Json], Any]] = {
    "float": _number,
    "complex": lambda document: complex(*map(_number, document["parts"])),
    "bytes": lambda document: base64.b64decode(document["base64"]),
    "torch": lambda document: getattr(torch, document["name"]),
    "device": lambda document: torch.device(document["name"]),
    "array": _array,
    "scalar": lambda document: _array(document)[()],
}
_BUILD_SEQUENCE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_BUILD_MAPPING: dict[str, Callable[[], MutableMapping[Any, Any]]] = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "counter": collections.Counter,
}


# -- documents ---------------------------------------------------------------------------------------------------------


def encode_document(document: Json) -> bytes:
    """As strict JSON; floats come back as they were."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def decode_document(content: bytes) -> Json:
    """What `encode_document` wrote."""
    return json.loads(content)


# -- random numbers ----------------------------------------------------------------------------------------------------


def rng_state() -> dict[str, Any]:
    """The states of every generator a training may draw from, to go through `flatten_state`; all are copies."""
    import numpy as np

    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Put the generators where `rng_state` found them; CUDA's only as many as there are here."""
    import numpy as np

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        here = torch.cuda.device_count()
        for device, own in enumerate(state["cuda"][:here]):
            torch.cuda.set_rng_state(own.cpu(), device)
