"""What `nearpeak train CONFIG.toml` can be told: one frozen dataclass a table of the file.

`load_config` merges defaults, file and command line, and remembers for each value which of the three it came from.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from nearpeak.errors import SettingError
from nearpeak.job import REMAINDERS, Remainder
from nearpeak.plan import CHOICES, LoaderSettings, Plan, load_plan

__all__ = ["DataConfig", "JobConfig", "ModelConfig", "OutputConfig", "TrainConfig", "load_config"]

Problem = Literal["single_label", "multi_label", "regression"]
PROBLEMS = ("single_label", "multi_label", "regression")
FORMATS = ("auto", "csv", "jsonl", "parquet", "datasets")
PRESETS = ("tiny", "small")
SCHEDULES = ("linear", "cosine", "constant")
OPTIONAL = {
    "data": ("validation", "test", "text_pair", "label_separator"),
    "model": ("name_or_path", "from_config", "from_scratch", "tokenizer", "revision"),
}
DEFAULT_FOLDER = "output"
PATHS = ("data.train", "data.validation", "data.test", "model.from_config", "model.tokenizer", "output.folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """[data]: where the texts are and which column means what."""

    train: str | tuple[str, ...]
    validation: str | tuple[str, ...] | None = None
    test: str | tuple[str, ...] | None = None
    validation_fraction: float | None = None
    """Share of the training rows held out for validation, where no validation file is given."""
    test_fraction: float | None = None
    text: str = "text"
    text_pair: str | None = None
    label: str | tuple[str, ...] = "label"
    """A column, or several 0/1 columns of a multi-label problem."""
    label_separator: str | None = None
    """What stands between the labels of a multi-label column: `label_separator = ";"`."""
    problem: Literal["auto", "single_label", "multi_label", "regression"] = "auto"
    max_length: int | None = None
    """Most tokens of a text; longer ones are cut. None: what the model can take, at most 512."""
    empty: Literal["error", "skip"] = "error"
    """What to do with rows without text."""
    format: Literal["auto", "csv", "jsonl", "parquet", "datasets"] = "auto"
    delimiter: str | None = None
    """Between a CSV file's fields; None: a tab in .tsv files, else a comma."""
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            fraction = getattr(self, f"{name}_fraction")
            _check_fraction(f"data.{name}_fraction", fraction)
            if fraction is not None and getattr(self, name) is not None:
                raise SettingError(f"data.{name} and data.{name}_fraction are both set: keep one of them.")
        if (self.validation_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise SettingError(
                "data.validation_fraction + data.test_fraction must stay below 1: training needs rows too."
            )
        if self.max_length is not None and self.max_length < 4:
            raise SettingError(f"data.max_length={self.max_length}: must be at least 4 tokens.")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise SettingError(f"data.delimiter={self.delimiter!r}: must be one character.")
        self._check_label()

    def _check_label(self) -> None:
        several = isinstance(self.label, tuple)
        if several and len(self.label) < 2:
            raise SettingError(
                f"data.label={list(self.label)}: a list names two or more 0/1 columns; for one, write its name."
            )
        if several and self.label_separator is not None:
            raise SettingError(
                "data.label_separator splits one label column; data.label lists several. Keep one of them."
            )
        if self.label_separator == "":
            raise SettingError("data.label_separator='': must hold at least one character.")
        if several and self.problem in ("single_label", "regression"):
            raise SettingError(
                f"data.problem={self.problem!r} takes one label column, data.label lists {len(self.label)}."
            )
        if self.label_separator and self.problem in ("single_label", "regression"):
            raise SettingError(
                f"data.label_separator belongs to multi-label problems, data.problem is {self.problem!r}."
            )
        names = [self.text, *([self.text_pair] if self.text_pair else []), *self.label_columns]
        if len(set(names)) < len(names):
            raise SettingError(f"data.text, data.text_pair and data.label must be different columns; they are {names}.")

    @property
    def label_columns(self) -> tuple[str, ...]:
        return self.label if isinstance(self.label, tuple) else (self.label,)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read."""
        return (self.text, *((self.text_pair,) if self.text_pair else ()), *self.label_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """[model]: exactly one of name_or_path, from_config and from_scratch."""

    name_or_path: str | None = None
    """A folder or a hub name, with weights."""
    from_config: str | None = None
    """A folder or file with a config.json: that architecture, random weights."""
    from_scratch: Literal["tiny", "small"] | None = None
    """A small BERT of our own, random weights, its tokenizer trained on the training texts."""
    tokenizer: str | None = None
    """A tokenizer's folder or hub name, where it is not the model's."""
    revision: str | None = None
    vocabulary: int = 8_000
    """Tokens of a tokenizer trained from scratch."""

    def __post_init__(self) -> None:
        given = [name for name in ("name_or_path", "from_config", "from_scratch") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError(
                f"[model] sets {' and '.join(given) or 'none of them'}: give exactly one of name_or_path (a trained "
                "model), "
                f"from_config (an architecture, random weights) and from_scratch ({' or '.join(PRESETS)})."
            )
        if self.vocabulary < 100:
            raise SettingError(f"model.vocabulary={self.vocabulary}: must be at least 100.")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """[job]: what is learned."""

    global_batch: int = 32
    epochs: float | None = None
    """3 where optimizer_steps is not set either."""
    optimizer_steps: int | None = None
    learning_rate: float | None = None
    """None: 5e-5 for a trained model, 5e-4 for random weights."""
    weight_decay: float = 0.01
    warmup: int | float = 0.06
    """Below 1: share of all optimizer steps; else a number of them."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    clip_norm: float | None = 1.0
    """0 switches clipping off."""
    seed: int = 0
    remainder: Remainder = "short"

    def __post_init__(self) -> None:
        _check_at_least("job.global_batch", self.global_batch, 1)
        if self.epochs is not None and self.optimizer_steps is not None:
            raise SettingError("job.epochs and job.optimizer_steps are both set: keep one of them.")
        if self.optimizer_steps is not None:
            _check_at_least("job.optimizer_steps", self.optimizer_steps, 1)
        for name in ("epochs", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingError(f"job.{name}={value!r}: must be a finite number above 0.")
        for name in ("weight_decay", "warmup", "clip_norm", "seed"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise SettingError(f"job.{name}={value!r}: must be a finite number of at least 0.")
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise SettingError(f"job.warmup={self.warmup}: a share below 1, or a whole number of optimizer steps.")

    @property
    def length(self) -> dict[str, Any]:
        """How long to train, as `Job` takes it."""
        if self.optimizer_steps is not None:
            return {"optimizer_steps": self.optimizer_steps}
        return {"epochs": 3.0 if self.epochs is None else self.epochs}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """[output]: where the model goes and when it is saved."""

    folder: str = DEFAULT_FOLDER
    overwrite: bool = False
    evaluate_every: int | Literal["epoch", "end"] = "epoch"
    """Optimizer steps between evaluations on the validation split, "epoch" or "end"."""
    save_best_by: str = "auto"
    """The validation metric that decides which model is kept; "last" keeps the last one."""
    resume: bool = True
    """Keep the training's state beside the folder while it goes on, and go on from it after a stop."""

    def __post_init__(self) -> None:
        if isinstance(self.evaluate_every, int):
            _check_at_least("output.evaluate_every", self.evaluate_every, 1)
        if not self.folder:
            raise SettingError("output.folder='': name a folder.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The whole file, with the origin of each value."""

    data: DataConfig
    model: ModelConfig
    job: JobConfig = field(default_factory=JobConfig)
    plan: Plan | Literal["auto"] = "auto"
    output: OutputConfig = field(default_factory=OutputConfig)
    origins: Mapping[str, str] = field(default_factory=dict)
    """"default", the file's name or "command line" for each dotted setting."""

    def described(self) -> list[tuple[str, Any, str]]:
        """(setting, value, origin) of every setting, in the order of the file."""
        rows = [row for name in SECTIONS for row in self._section(name, getattr(self, name))]
        return rows if self.plan != "auto" else [*rows, ("plan", "auto", self._origin("plan"))]

    def _section(self, name: str, section: Any) -> list[tuple[str, Any, str]]:
        if section == "auto":
            return []
        names = [item.name for item in fields(section) if item.name != "reasons"]
        return [(f"{name}.{key}", getattr(section, key), self._origin(f"{name}.{key}")) for key in names]

    def _origin(self, dotted: str) -> str:
        return self.origins.get(dotted) or self.origins.get(dotted.partition(".")[0]) or "default"


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "job": JobConfig,
    "plan": Plan,
    "output": OutputConfig,
}


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read the file, lay `section.key=value` overrides over it, and check everything."""
    raw = _read_toml(Path(path))
    _refuse_unknown(raw, str(path))
    origins = {dotted: Path(path).name for dotted in _dotted(raw)}
    _resolve_paths(raw, Path(path).parent)
    for override in overrides:
        dotted = _override(raw, override)
        origins = {name: origin for name, origin in origins.items() if not name.startswith(f"{dotted}.")}
        origins[dotted] = "command line"
    _drop_switched_off(raw)
    return _convert(raw, origins, str(path))


def with_output(config: TrainConfig, folder: str | None, force: bool) -> TrainConfig:
    """The config with `--output` and `--force` of the command line laid over it."""
    changes: dict[str, Any] = {} if folder is None else {"folder": folder}
    if force:
        changes["overwrite"] = True
    origins = dict(config.origins) | {f"output.{key}": "command line" for key in changes}
    return replace(config, output=replace(config.output, **changes), origins=origins)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise SettingError(
            f"{path}: no such file. `nearpeak train` takes a TOML file; docs/train.md has one."
        ) from None
    except IsADirectoryError:
        raise SettingError(f"{path} is a folder; `nearpeak train` takes a TOML file.") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: TOML files are UTF-8: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: not valid TOML: {error}.") from None


def _refuse_unknown(raw: Mapping[str, Any], source: str) -> None:
    for name, section in raw.items():
        _known(name, SECTIONS, source, "table" if isinstance(section, dict) else "setting")
        if isinstance(section, dict):
            for key in section:
                _known(key, _keys(name), source, f"setting in [{name}]")
            for key in section.get("loader") or {} if name == "plan" else ():
                _known(key, [item.name for item in fields(LoaderSettings)], source, "setting in [plan.loader]")
        elif name != "plan":
            raise SettingError(f"{source}: {name}={section!r}: must be a table of settings, headed [{name}].")


def _known(name: str, allowed: Any, source: str, what: str) -> None:
    if name in allowed:
        return
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    homes = [section for section in SECTIONS if name in _keys(section)]
    if near:
        hint = f"Did you mean {near[0]!r}?"
    elif homes:
        hint = f"{name!r} belongs in [{homes[0]}]."
    else:
        hint = f"There are {', '.join(allowed)}."
    raise SettingError(f"{source}: unknown {what}: {name!r}. {hint}")


def _keys(section: str) -> list[str]:
    return [item.name for item in fields(SECTIONS[section])]


def _dotted(raw: Mapping[str, Any]) -> list[str]:
    flat = [f"{name}.{key}" for name, section in raw.items() if isinstance(section, dict) for key in section]
    return flat + [name for name, section in raw.items() if not isinstance(section, dict)]


def _resolve_paths(raw: dict[str, Any], folder: Path) -> None:
    """Paths in the file are meant from the file's own folder; those on the command line from where one stands."""
    raw.setdefault("output", {}).setdefault("folder", DEFAULT_FOLDER)
    for dotted in PATHS:
        section, _, key = dotted.partition(".")
        value = raw.get(section, {}).get(key)
        if isinstance(value, str):
            raw[section][key] = _from(folder, value, dotted)
        elif isinstance(value, list):
            raw[section][key] = [_from(folder, item, dotted) if isinstance(item, str) else item for item in value]
    name = raw.get("model", {}).get("name_or_path")
    if isinstance(name, str) and (folder / name).is_dir():
        raw["model"]["name_or_path"] = str(folder / name)
    if isinstance(raw.get("plan"), str) and raw["plan"] != "auto":
        raw["plan"] = str(folder / raw["plan"])


def _from(folder: Path, value: str, dotted: str) -> str:
    """A tokenizer may be a hub name, which is no path."""
    local = folder / Path(value).expanduser()
    return value if not value or (dotted == "model.tokenizer" and not local.exists()) else str(local)


def _override(raw: dict[str, Any], override: str) -> str:
    """Lay one `job.global_batch=64` over the file's values; returns the dotted name."""
    dotted, equals, text = override.partition("=")
    section, _, key = dotted.strip().partition(".")
    if not equals or not section or (not key and section != "plan"):
        raise SettingError(
            f"--set {override}: write it as section.setting=value, for example --set job.global_batch=64."
        )
    value = _toml_value(text.strip())
    key, _, inner = key.partition(".")
    laid = {key: {inner: value} if inner else value}
    _refuse_unknown({section: laid if key else "auto"}, "--set")
    if not key:
        raw[section] = value
        return section
    if not isinstance(raw.get(section), dict):
        raw[section] = {}
    raw[section][key] = (raw[section].get(key) or {}) | laid[key] if inner else value
    return f"{section}.{key}"


def _toml_value(text: str) -> Any:
    """`64` is a number, `true` a truth value, `["a", "b"]` a list; what TOML does not know is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _drop_switched_off(raw: dict[str, Any]) -> None:
    """TOML has no null: an empty text switches an optional setting off (`--set data.validation=`)."""
    for section, names in OPTIONAL.items():
        for name in names:
            if raw.get(section, {}).get(name) == "":
                raw[section][name] = None


def _convert(raw: dict[str, Any], origins: dict[str, str], source: str) -> TrainConfig:
    if "train" not in raw.get("data", {}):
        raise SettingError(
            f'{source}: data.train is missing: the file with the training texts, train = "train.csv" in [data].'
        )
    sections = {name: _convert_section(name, raw.get(name, {}), source, origins) for name in SECTIONS if name != "plan"}
    return TrainConfig(**sections, plan=_plan_of(raw.get("plan", "auto"), source, origins), origins=origins)


def _plan_of(value: Any, source: str, origins: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return _convert_section("plan", value, source, origins)
    if not isinstance(value, str):
        raise SettingError(f'{source}: plan={value!r}: must be "auto", the path of a plan file, or a table [plan].')
    return "auto" if value == "auto" else load_plan(value)


def _convert_section(name: str, section: dict[str, Any], source: str, origins: Mapping[str, str]) -> Any:
    import msgspec

    try:
        return msgspec.convert(section, SECTIONS[name])
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SettingError):
            raise error.__cause__ from None
        raise SettingError(_type_message(name, section, source, origins, str(error))) from None


def _type_message(name: str, section: dict[str, Any], source: str, origins: Mapping[str, str], error: str) -> str:
    """`Expected `int`, got `str` - at `$.epochs`` in the user's own words."""
    rule, _, where = error.partition(" - at `$.")
    key = where.rstrip("`").split("[")[0]
    top = key.partition(".")[0]
    dotted = f"{name}.{key}" if key else f"[{name}]"
    shown = f"={section[top]!r}" if top in section else ""
    origin = "--set" if origins.get(f"{name}.{top}") == "command line" else source
    return f"{origin}: {dotted}{shown}: {rule[:1].lower()}{rule[1:]}.{_allowed(name, top)}"


def _allowed(section: str, key: str) -> str:
    choices = {
        "data.problem": ("auto", *PROBLEMS), "data.format": FORMATS, "data.empty": ("error", "skip"),
        "model.from_scratch": PRESETS, "job.schedule": SCHEDULES, "job.remainder": tuple(REMAINDERS),
        "output.evaluate_every": ("a number of optimizer steps", "epoch", "end"),
    }.get(f"{section}.{key}") or (CHOICES.get(key) if section == "plan" else None)  # fmt: skip
    return f" It can be {', '.join(choices)}." if choices else ""


def _check_fraction(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise SettingError(f"{name}={value}: must be above 0 and below 1 (0.1 holds out a tenth of the rows).")


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise SettingError(f"{name}={value}: must be a whole number of at least {least}.")
