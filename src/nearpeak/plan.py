"""`Plan`: how a job is executed. Two plans of one job make the same training, up to rounding."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nearpeak.errors import MissingExtraError, SettingError
from nearpeak.reason import Reason

__all__ = ["BlockRecompute", "LoaderSettings", "Plan", "check_plan_format", "load_plan", "operator_key", "save_plan"]

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MicroBatching = Literal["auto", "fixed", "partition", "packed"]
Recompute = Literal["none", "blocks", "every_nth", "selective", "chosen"]

CHOICES: dict[str, tuple[str, ...]] = {
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "micro_batching": ("auto", "fixed", "partition", "packed"),
    "recompute": ("none", "blocks", "every_nth", "selective", "chosen"),
    "compile": ("none", "blocks"),
    "matmul": ("keep", "onednn"),
    "dropout": ("keep", "bits"),
    "attention": ("keep", "eager", "sdpa", "flash_attention_2", "flex_attention"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How samples are fetched."""

    workers: int | Literal["auto"] = "auto"
    """Processes that fetch samples; `auto` starts at 0 and grows while the step waits for input."""
    prefetch_windows: int = 2
    """Windows each worker prepares ahead."""
    pin_memory: bool = True
    """Stage batches in page-locked memory; only used where a GPU is."""

    def __post_init__(self) -> None:
        if self.workers != "auto" and (not isinstance(self.workers, int) or self.workers < 0):
            raise SettingError(f"loader.workers={self.workers!r}: must be 'auto' or a whole number of at least 0.")
        if self.prefetch_windows < 1:
            raise SettingError(f"loader.prefetch_windows={self.prefetch_windows}: must be at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecompute:
    """What like blocks keep for backward and what they compute again, operator by operator."""

    modules: tuple[str, ...]
    """Paths of the blocks in the model."""
    operators: tuple[str, ...]
    """In the order in which forward calls them, as `name:choices` with a letter for each tensor made: k keep it,
    r compute it again whenever backward needs it, h compute it again once and hold it until backward needs it no more.
    """

    def __post_init__(self) -> None:
        for each in self.operators:
            name, colon, choices = each.rpartition(":")
            if not name or not colon or not choices or set(choices) - set("krh"):
                raise SettingError(
                    f"recompute_blocks: {each!r}: must be an operator's name, a colon, and k, r or h for each tensor."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a job is executed. The defaults are safe anywhere; `Run(job, "auto")` measures better ones."""

    precision: Precision = "fp32"
    micro_batching: MicroBatching = "auto"
    """How a window is split: `fixed` (as the user would), `partition` (by length and cost), `packed` (no padding)."""
    micro_batch: int | None = None
    """Most samples of one micro-batch; None leaves it to cost and memory. `fixed` needs it."""
    micro_batch_tokens: int | None = None
    """Memory budget: most (padded) tokens of one micro-batch."""
    shifted_labels: bool | None = None
    """With `normaliser="tokens"`: whether the loss leaves out each sample's first label, as causal models do; None
    measures it."""
    recompute: Recompute = "none"
    recompute_every: int = 2
    """With `every_nth`: recompute one block of this many."""
    recompute_blocks: tuple[BlockRecompute, ...] = ()
    """With `chosen`: what `nearpeak predict memory --recompute auto` found for this model."""
    compile: Literal["none", "blocks"] = "none"
    attention: Literal["keep", "eager", "sdpa", "flash_attention_2", "flex_attention"] = "keep"
    matmul: Literal["keep", "onednn"] = "keep"
    """On CPUs: fp32 products as torch makes them, or through oneDNN."""
    fused_optimizer: bool = True
    dropout: Literal["keep", "bits"] = "keep"
    """On CPUs: dropout masks as torch draws them, or from 16 random bits an element, at the same rate."""
    cost_terms: tuple[float, float, float] | None = None
    """Launch, token and square-of-length cost (ms) that `partition` minimises; None measures them, or takes ratios that
    hold on most machines. Kept in the plan, so that the same plan makes the same micro-batches again."""
    checkpoint_every: int | Literal["auto"] = "auto"
    """Optimizer steps between two checkpoints, where a run keeps any; `auto` weighs their cost against lost work."""
    checkpoints_kept: int = 2
    threads: int | None = None
    """CPU threads of the training process; None keeps torch's setting."""
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    reasons: tuple[Reason, ...] = ()
    """Why each automatic choice was made."""

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise SettingError(f"Plan({name}={getattr(self, name)!r}): must be one of {', '.join(allowed)}.")
        for name in ("micro_batch", "micro_batch_tokens", "threads", "checkpoint_every", "checkpoints_kept"):
            value = getattr(self, name)
            if value is not None and value != "auto" and (not isinstance(value, int) or value < 1):
                raise SettingError(f"Plan({name}={value!r}): must be a whole number of at least 1, or left out.")
        if self.micro_batching == "fixed" and self.micro_batch is None:
            raise SettingError("Plan(micro_batching='fixed') needs micro_batch: the samples of one micro-batch.")
        if self.recompute_every < 2:
            raise SettingError(
                f"Plan(recompute_every={self.recompute_every}): must be at least 2; use recompute='blocks' for all."
            )
        if self.recompute == "chosen" and self.compile != "none":
            raise SettingError(
                f"Plan(recompute='chosen', compile={self.compile!r}): compiled blocks do not tell which operators they "
                "call; use compile='none', or another recompute."
            )
        if (self.recompute == "chosen") != bool(self.recompute_blocks):
            raise SettingError(
                f"Plan(recompute={self.recompute!r}, recompute_blocks of {len(self.recompute_blocks)}): 'chosen' and "
                "recompute_blocks go together; `nearpeak predict memory MODEL --recompute auto` makes them."
            )


def operator_key(name: str) -> str:
    """An operator's name in a choice: kernels of attention are one, whichever the device has."""
    return "attention" if name.startswith("_scaled_dot_product_") or name.endswith("_attention_forward") else name


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as JSON or TOML, by the file's ending."""
    import msgspec

    check_plan_format(path)
    encode = msgspec.toml.encode if _is_toml(path) else msgspec.json.encode
    data = encode(_without_none(msgspec.to_builtins(plan)))
    Path(path).write_bytes(data if _is_toml(path) else msgspec.json.format(data, indent=2))


def check_plan_format(path: str | Path) -> None:
    """Whether `save_plan` can write the file's format here: to be asked before long work whose result is a plan."""
    if _is_toml(path) and importlib.util.find_spec("tomli_w") is None:
        raise MissingExtraError(
            f"{path}: tomli-w is not installed, which writes TOML. Get it with: pip install 'nearpeak[train]'; or name "
            "the file .json."
        )


def load_plan(path: str | Path) -> Plan:
    """Read a plan from JSON or TOML; errors name the file and the setting."""
    import msgspec

    try:
        raw = Path(path).read_bytes()
        builtins = tomllib.loads(raw.decode()) if _is_toml(path) else msgspec.json.decode(raw)
        _refuse_unknown(builtins, path)
        return msgspec.convert(builtins, Plan)
    except FileNotFoundError:
        raise SettingError(f"{path}: no such plan file.") from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: not a plan: {error}.") from None


def _is_toml(path: str | Path) -> bool:
    return Path(path).suffix == ".toml"


def _refuse_unknown(builtins: Any, path: str | Path) -> None:
    if not isinstance(builtins, dict):
        raise SettingError(f"{path}: not a plan: the file must hold a table of settings.")
    blocks = builtins.get("recompute_blocks")
    tables: list[tuple[Any, type, str]] = [
        (builtins, Plan, "a plan"),
        (builtins.get("loader", {}), LoaderSettings, "[loader]"),
    ]
    entries = blocks if isinstance(blocks, list) else []  # what else stands there is refused by its type
    tables += [(each, BlockRecompute, "an entry of recompute_blocks") for each in entries if isinstance(each, dict)]
    for table, kind, name in tables:
        unknown = sorted(set(table) - set(kind.__slots__))
        if unknown:
            raise SettingError(f"{path}: unknown setting {unknown[0]!r}; {name} has {', '.join(kind.__slots__)}.")


def _without_none(value: Any) -> Any:
    """TOML has no null: a missing key means None."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
