"""What torch's partitioner keeps for backward at an `activation_memory_budget`, on tensors without data.

    python benchmarks/_partitioned.py REQUEST.json POINTS.json BUDGET,BUDGET,… [decomposed]

The joint graph of forward and backward is traced on the pretend device and split by torch for each budget. Nothing here
compiles or runs: memory is the sum of results that a later operator of the same graph still reads, operators in the
graphs' own order, with nothing fused. What a compiler fuses is never in memory, so the truth may lie below.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from nearpeak.predict.pretend import autocast, device, kernels
from nearpeak.predict.pretend.batches import Inputs
from nearpeak.predict.pretend.building import to_device
from nearpeak.predict.pretend.device import DEVICE
from nearpeak.predict.pretend.flops import operator_flops
from nearpeak.predict.pretend.sources import subject_of
from nearpeak.predict.pretend.values import KnownValues
from nearpeak.predict.request import CaptureRequest

ROUNDING = 512


def main(request_path: str, points_path: str, budgets: str, *decomposed: str) -> None:
    """One point a budget: saved bytes, the most that is live, floating point operations."""
    torch.set_num_threads(1)
    device.prepare()
    autocast.register()
    kernels.register()
    kernels.use(kernels.Card((8, 0)))
    request = msgspec.json.decode(Path(request_path).read_bytes(), type=CaptureRequest)
    graph, inputs, options = _joint_graph(request, bool(decomposed))
    points = [_point(graph, inputs, options, float(budget)) for budget in budgets.split(",")]
    Path(points_path).write_text(json.dumps(points))


def _joint_graph(request: CaptureRequest, decomposed: bool) -> tuple[Any, Any, dict[str, Any]]:
    """Forward and backward in one graph, as torch hands it to its partitioner."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import default_partition
    from torch._inductor.decomposition import select_decomp_table

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    subject = subject_of(request, fake, Inputs())
    seen: list[Any] = []

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        seen.append((copy.deepcopy(joint), inputs, options))
        return default_partition(joint, inputs, **options)

    def as_it_is(graph: Any, _: Any) -> Any:
        return graph

    with fake:
        to_device(subject.model, subject.weights, KnownValues())
        subject.model.train()
        batch = dict(subject.batch())
        batch.pop("attention_mask", None)  # all ones: it changes nothing, and is read from the device
        _read_nothing(subject.model)
        step, tensors = _as_function(subject, batch)
        table = select_decomp_table() if decomposed else None
        aot_function(step, as_it_is, as_it_is, partition_fn=partition, decompositions=table)(*tensors)
    return seen[0]


def _read_nothing(model: torch.nn.Module) -> None:
    """transformers reads values from the device to warn of padding and to find packed samples; here are neither."""
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
    for module in model.modules():
        module.warn_if_padding_and_no_attention_mask = lambda *_: None


def _as_function(subject: Any, batch: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """The step as a function of its weights and its batch; what a training loop keeps is returned beside the loss."""
    named = {**dict(subject.model.named_parameters()), **dict(subject.model.named_buffers())}

    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights, given = tensors[: len(named)], tensors[len(named) :]
        with (
            torch.nn.utils.stateless._reparametrize_module(
                subject.model, dict(zip(named, weights, strict=True)), tie_weights=True
            ),
            torch.amp.autocast(DEVICE, dtype=subject.autocast or torch.bfloat16, enabled=subject.autocast is not None),
        ):
            result = subject.loss(subject.model, dict(zip(batch, given, strict=True)))
        loss = result[0] if isinstance(result, tuple) else result
        others = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and each is not loss]
        return (loss, *(each.detach() for each in others))

    return step, [*named.values(), *batch.values()]


def _point(graph: Any, inputs: Any, options: dict[str, Any], budget: float) -> dict[str, float]:
    import torch._functorch.config as settings
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with settings.patch(activation_memory_budget=budget):
        forward, backward = min_cut_rematerialization_partition(copy.deepcopy(graph), inputs, **options)
    outputs = _outputs(forward)
    kept, saved = outputs[: options["num_fwd_outputs"]], outputs[options["num_fwd_outputs"] :]
    given = {key for node in _placeholders(forward) for key in _storages(node)}
    kept_bytes = _total(kept, given)
    return {
        "budget": budget,
        "saved_bytes": _total(saved, given),
        "live_bytes": max(_most_live(forward), kept_bytes + _most_live(backward)),
        "flops": _flops(forward) + _flops(backward),
    }


def _outputs(graph: Any) -> list[Any]:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return [node for node in output.args[0] if isinstance(node, torch.fx.Node)]


def _placeholders(graph: Any) -> list[Any]:
    """Weights and batch; what forward saved is counted with backward."""
    return [node for node in graph.graph.nodes if node.op == "placeholder" and node.name.startswith("primals")]


def _storages(node: Any) -> dict[int, int]:
    """Memory that a node's results lie in → bytes."""
    tensors = [each for each in tree_leaves(node.meta.get("val")) if isinstance(each, torch.Tensor)]
    found = {each.untyped_storage()._cdata: int(each.untyped_storage().nbytes()) for each in tensors}
    return {key: -(-size // ROUNDING) * ROUNDING for key, size in found.items()}


def _total(nodes: list[Any], without: set[int]) -> int:
    found = {key: size for node in nodes for key, size in _storages(node).items()}
    return sum(size for key, size in found.items() if key not in without)


def _most_live(graph: Any) -> int:
    """Results that are still read, at the worst moment."""
    nodes = list(graph.graph.nodes)
    given = {key for node in _placeholders(graph) for key in _storages(node)}
    last: dict[int, int] = {}
    for place, node in enumerate(nodes):
        last |= {key: place for each in (*node.all_input_nodes, node) for key in _storages(each)}
    live: dict[int, int] = {}
    most = 0
    for place, node in enumerate(nodes):
        live |= {key: size for key, size in _storages(node).items() if key not in given}
        most = max(most, sum(live.values()))
        live = {key: size for key, size in live.items() if last[key] > place}
    return most


def _flops(graph: Any) -> int:
    total = 0
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            arguments = map_arg(node.args, lambda each: each.meta.get("val"))
            results = [each for each in tree_leaves(node.meta.get("val")) if isinstance(each, torch.Tensor)]
            total += operator_flops(node.target, arguments, {}, results)
    return total


if __name__ == "__main__":
    main(*sys.argv[1:])
