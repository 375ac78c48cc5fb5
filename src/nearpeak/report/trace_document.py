"""What a trace told beyond its breakdown, as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nearpeak.diagnose.trace_facts import TraceFacts

__all__ = ["trace_document"]


def trace_document(facts: TraceFacts) -> dict[str, Any]:
    """Every fact by its name; ranks stand in the order of the document's own `ranks`."""
    found = asdict(facts)
    found["collectives"] = [
        {**asdict(each), "algorithm_gb_per_s": each.algorithm_gb_per_s} for each in facts.collectives
    ]
    found["host_places"] = [{"name": name, "share": share} for name, share in facts.host_places]
    return found
