"""How windows were regrouped, as a checkpoint keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nearpeak.integrations._window import Method
from nearpeak.train.cost import CostModel
from nearpeak.train.kernels import Kernels

__all__ = ["Choice", "from_json", "to_json"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided before the first window, and the largest batch up to now, which bounds micro-batches."""

    method: Method | None
    """None: the script's own way was kept."""
    largest_batch: int

    def needs_adapter(self, method: Method) -> bool:
        """Whether packed rows were used and this model cannot run them now."""
        return method.name == "packed" and method.adapter is None


def to_json(choice: Choice) -> dict[str, Any]:
    """Every float to its last bit, as JSON keeps them; the adapter belongs to the model and is found again."""
    method = choice.method
    return {
        "largest_batch": choice.largest_batch,
        "method": method
        and {
            "name": method.name,
            "kind": method.kind,
            "shifted": method.shifted,
            "cost": asdict(method.cost),
            "kernels": method.kernels._asdict(),
        },
    }


def from_json(saved: dict[str, Any]) -> Choice:
    """What `to_json` was given, without the adapter."""
    method = saved["method"]
    if method is not None:
        cost, kernels = CostModel(**method["cost"]), Kernels(**method["kernels"])
        method = Method(**{**method, "cost": cost, "kernels": kernels})
    return Choice(method, saved["largest_batch"])
