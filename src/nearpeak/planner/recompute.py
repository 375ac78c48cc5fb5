"""The recomputation of least extra arithmetic for a memory budget, verified by running the step with it.

The wanted peak is met in the captured step, not in a sum of saved bytes: what the search takes a choice to need is
corrected by what the step with that choice needs on the pretend device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from nearpeak.errors import SettingError, UnsupportedError
from nearpeak.plan import BlockRecompute, operator_key
from nearpeak.planner.graph import StepGraph, step_graph
from nearpeak.planner.search import Chosen, Search
from nearpeak.predict.capture import TIME_LIMIT_S, capture
from nearpeak.predict.memory import peaks
from nearpeak.predict.played import Played
from nearpeak.predict.request import PREPARE_RECOMPUTE, CaptureRequest
from nearpeak.predict.step_trace import OutputsUntil, StepTrace
from nearpeak.reason import Reason

__all__ = ["RecomputeChoice", "Recomputer"]

MIB = 1 << 20
CORRECTIONS = 7
"""Captures at most for one budget."""
CLOSE_SHARE = 0.004
"""Of the activations: a verified peak so little below the wanted one is not worth another capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeChoice:
    """What to recompute, what it saves and what it costs."""

    blocks: tuple[BlockRecompute, ...]
    """Empty: nothing need be computed again."""
    met: bool
    """Whether the wanted peak is reached; if not, this is the choice with the least peak."""
    wanted_peak_bytes: int | None
    """None: the least there is, or whatever fits a card."""
    peak_bytes: int
    """Allocated, of the captured step with this choice."""
    plain_peak_bytes: int
    """Without recomputation."""
    activation_bytes: int
    """What forward leaves for backward without recomputation."""
    extra_flops: int
    step_flops: int
    """Of a step without recomputation, forward and backward."""
    extra_traffic_bytes: int
    """Read and written by operators that run again."""
    reason: Reason

    @property
    def extra_share(self) -> float:
        return self.extra_flops / self.step_flops


class Recomputer:
    """Finds choices for one request; the step without recomputation is captured once."""

    def __init__(
        self,
        request: CaptureRequest,
        *,
        trace: StepTrace | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        outputs_until: OutputsUntil = "next_step",
    ) -> None:
        """`outputs_until`: how long the training loop holds what forward returns."""
        if request.prepare is not None or request.recompute:
            raise SettingError(
                f"{request.model}: recomputation is chosen for a model without any; leave out recompute and prepare."
            )
        self.request, self._time_limit_s = request, time_limit_s
        self._outputs_until: OutputsUntil = outputs_until
        self.plain = trace or capture(request, time_limit_s=time_limit_s)
        self.graph: StepGraph = step_graph(self.plain)
        if not self.graph.blocks:
            raise UnsupportedError(
                f"{request.model}: no numbered modules (ModuleList, Sequential) that backward goes through: there is "
                "nothing to choose recomputation for."
            )
        if not self.plain.flops:
            raise UnsupportedError(
                f"{request.model}: its step has no matrix product or convolution, so there is no arithmetic to weigh "
                "recomputation by; leave out recompute."
            )
        self._search = Search(self.graph)
        self.plain_peak_bytes = self._played(self.plain).peak_allocated
        self._beside = self.plain_peak_bytes - self.graph.plain_peak_bytes
        """What later steps have beside the first, such as the optimizer's state."""
        self._verified: dict[tuple[BlockRecompute, ...], StepTrace] = {}

    @property
    def activation_bytes(self) -> int:
        return self.graph.activation_bytes

    def for_share(self, share: float) -> RecomputeChoice:
        """The peak may hold this share of the activations."""
        if not 0 < share <= 1:
            raise SettingError(f"memory budget {share:g}: must be a share of the activations, above 0 and at most 1.")
        return self.for_peak(self.plain_peak_bytes - round((1 - share) * self.activation_bytes))

    def for_peak(self, wanted_bytes: int) -> RecomputeChoice:
        """The allocated peak may be this."""
        return self._corrected(
            lambda trace: self._played(trace).peak_allocated - wanted_bytes, wanted_bytes, wanted_bytes
        )

    def for_card(self, excess_of: Callable[[StepTrace], int]) -> RecomputeChoice:
        """`excess_of` tells how many bytes a step takes more than a card has; not above 0 where it fits."""
        return self._corrected(excess_of, None, self.plain_peak_bytes - excess_of(self.plain))

    def trace_with(self, chosen: Chosen) -> StepTrace:
        """The step under a choice, captured."""
        return self.trace_of(self._blocks(chosen))

    def trace_of(self, blocks: tuple[BlockRecompute, ...]) -> StepTrace:
        """The step with these blocks recomputed, captured once."""
        if not blocks:
            return self.plain
        if blocks not in self._verified:
            arguments = {"policy": "chosen", "blocks": [asdict(block) for block in blocks]}
            request = replace(self.request, prepare=PREPARE_RECOMPUTE, prepare_arguments=arguments)
            self._verified[blocks] = capture(request, time_limit_s=self._time_limit_s)
        return self._verified[blocks]

    def _played(self, trace: StepTrace) -> Played:
        return peaks(trace, outputs_until=self._outputs_until)

    def _corrected(
        self, excess_of: Callable[[StepTrace], int], wanted_bytes: int | None, limit_bytes: int
    ) -> RecomputeChoice:
        """Search, verify, and search again by as much as the search was wrong."""
        if excess_of(self.plain) <= 0:
            return self._choice(Chosen((), 0.0, 0), wanted_bytes, met=True)
        found = self._cheapest(excess_of, limit_bytes)
        if found is not None:
            return self._choice(found, wanted_bytes, met=True)
        least = self._least()
        excess = excess_of(self.trace_with(least))
        if excess <= 0:
            return self._choice(least, wanted_bytes, met=True)
        peak = self._played(
            self.trace_with(least)
        ).peak_allocated  # others may need no more: blocks may not be what peaks
        cheaper = self._cheapest(lambda trace: self._played(trace).peak_allocated - peak, peak)
        return self._choice(cheaper or least, wanted_bytes, met=False)

    def _cheapest(self, excess_of: Callable[[StepTrace], int], limit_bytes: int) -> Chosen | None:
        best: Chosen | None = None
        tried: set[frozenset[int]] = set()
        close = round(CLOSE_SHARE * self.activation_bytes)
        margin = close // 2
        for _ in range(CORRECTIONS):
            chosen = self._search.cheapest(limit_bytes - self._beside)
            if chosen is None or (best is not None and chosen.kept in tried):
                break
            tried.add(chosen.kept)
            excess = excess_of(self.trace_with(chosen))
            if excess <= 0 and (best is None or chosen.cost < best.cost):
                best = chosen
            if -close <= excess <= 0 or (excess < 0 and not self._flops(chosen)):
                break
            if excess > 0:  # what changes nothing for the search changes more the next time
                limit_bytes -= excess + margin
                margin *= 3
            else:
                limit_bytes -= excess
        return best

    def _least(self) -> Chosen:
        """The choice with the least peak that the search knows."""
        chosen = self._search.cheapest(self._search.least_limit)
        if chosen is None:
            raise UnsupportedError(f"{self.request.model}: no choice of recomputation was found.")
        return chosen

    def _flops(self, chosen: Chosen) -> int:
        return sum(option.flops for option in chosen.options)

    def _choice(self, chosen: Chosen, wanted_bytes: int | None, *, met: bool) -> RecomputeChoice:
        blocks = self._blocks(chosen)
        trace = self.trace_of(blocks)
        peak, extra = self._played(trace).peak_allocated, trace.flops - self.plain.flops
        return RecomputeChoice(
            blocks=blocks,
            met=met,
            wanted_peak_bytes=wanted_bytes,
            peak_bytes=peak,
            plain_peak_bytes=self.plain_peak_bytes,
            activation_bytes=self.activation_bytes,
            extra_flops=extra,
            step_flops=self.plain.flops,
            extra_traffic_bytes=chosen.traffic_bytes,
            reason=self._reason(blocks, met, wanted_bytes, peak, extra),
        )

    def _reason(
        self, blocks: tuple[BlockRecompute, ...], met: bool, wanted: int | None, peak: int, extra: int
    ) -> Reason:
        numbers: dict[str, float | int | str | bool] = {
            "peak_bytes": peak,
            "plain_peak_bytes": self.plain_peak_bytes,
            "extra_flops_share": extra / self.plain.flops,
        }
        if not blocks:
            return Reason("recompute=none", "The step stays within the memory without recomputation.", numbers)
        figures = (
            f"the step peaks at {peak / MIB:,.0f} MiB instead of {self.plain_peak_bytes / MIB:,.0f} MiB, "
            f"for {extra / self.plain.flops:.1%} more arithmetic"
        )
        if met:
            return Reason("recompute=chosen", f"The least arithmetic that keeps within the memory: {figures}.", numbers)
        asked = "what the card has" if wanted is None else f"{wanted / MIB:,.0f} MiB"
        held = max(self._played(self.trace_of(blocks)).by_category.items(), key=lambda item: item[1])
        because = f"No recomputation keeps within {asked}. With the least memory, {figures}; "
        because += f"most of that peak is {held[0].replace('_', ' ')} ({held[1] / MIB:,.0f} MiB)."
        return Reason("recompute=chosen", because, numbers)

    def _blocks(self, chosen: Chosen) -> tuple[BlockRecompute, ...]:
        """Blocks with the same choices in one entry."""
        kept, held = chosen.kept, chosen.held
        modules: dict[tuple[str, ...], list[str]] = {}
        for block in self.graph.blocks if chosen.options else ():
            operators = tuple(self._entry(index, kept, held) for index in block.operators)
            modules.setdefault(operators, []).append(block.path)
        return tuple(BlockRecompute(modules=tuple(paths), operators=each) for each, paths in modules.items())

    def _entry(self, index: int, kept: frozenset[int], held: frozenset[int]) -> str:
        """An operator and a letter for each value that it makes; what backward does not need is not kept."""
        letters = "".join(self._letter(number, kept, held) for number in self.graph.made_by[index])
        name = self.plain.operators[index].name
        return f"{operator_key(name)}:{letters}"

    def _letter(self, number: int, kept: frozenset[int], held: frozenset[int]) -> str:
        if number in kept or not self.graph.values[number].again:
            return "k"
        return "h" if number in held else "r"
