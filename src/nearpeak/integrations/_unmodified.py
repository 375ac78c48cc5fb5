"""What `nearpeak run --apply safe` does inside a script: every transformers Trainer it builds trains regrouped."""

from __future__ import annotations

import functools
import itertools
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nearpeak.errors import UnsupportedError
from nearpeak.observe.attach import settings, write_record

if TYPE_CHECKING:
    from types import ModuleType

    from nearpeak.integrations._regroup import Report

__all__ = ["HOOKS", "KIND", "install"]

KIND = "applied"
HOOKS = {"transformers.trainer": "nearpeak.integrations._unmodified:install"}


# A script may train more than once in one process.
_trainings = itertools.count()


def install(module: ModuleType) -> None:
    """Called once transformers.trainer has been imported: `Trainer.train` goes through us from now on."""
    train = module.Trainer.train

    @functools.wraps(train)
    def train_regrouped(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            regrouped, report = _prepare()
        except (UnsupportedError, ImportError) as error:
            _keep(str(error))
            return train(trainer, *args, **kwargs)
        bf16 = (settings() or {}).get("options", {}).get("precision") == "bf16"
        with regrouped(trainer, bf16=bf16, report=report):
            return train(trainer, *args, **kwargs)

    module.Trainer.train = train_regrouped


def _prepare() -> tuple[Any, Report]:
    """Import what needs torch only now that something trains."""
    from nearpeak.integrations.huggingface import Report, regrouped  # refuses versions it does not know

    return regrouped, Report(publish=functools.partial(_publish, next(_trainings)))


def _publish(number: int, report: Report) -> None:
    """Rewritten with everything that is known: a script that dies later has still said what was applied."""
    write_record(KIND, _content(report, [asdict(reason) for reason in report.reasons]), number=number)


def _content(report: Any, reasons: list[dict[str, Any]]) -> dict[str, Any]:
    counts = ("windows", "regrouped", "own_tokens", "computed_tokens")
    return {
        "trainer": getattr(report, "trainer", ""),
        "reasons": reasons,
        **{name: getattr(report, name, 0) for name in counts},
    }


def _keep(because: str) -> None:
    reason = {"choice": "micro_batching=fixed", "because": f"kept the script's own way: {because}", "evidence": {}}
    write_record(KIND, _content(None, [reason]), number=next(_trainings))
