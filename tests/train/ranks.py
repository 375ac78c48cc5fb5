"""Run by torchrun: trains the same jobs on some ranks and writes what came out, for test_parallel to compare."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jobs import classifier, config, point_job, point_loss, text_job, texts

from nearpeak import NearpeakError, Plan, Run
from nearpeak.plan import LoaderSettings

INLINE = LoaderSettings(workers=0)
PLANS = {
    "fixed": Plan(micro_batching="fixed", micro_batch=2, loader=INLINE),
    "packed": Plan(micro_batching="packed", loader=INLINE),
    "partition with recomputation": Plan(micro_batching="partition", recompute="blocks", loader=INLINE),
}


def first_gradient(job: Any, plan: Plan) -> dict[str, torch.Tensor]:
    """The first window's gradient as the optimizer gets it."""
    caught: dict[str, torch.Tensor] = {}

    class Catch(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            caught.update({n: p.grad.clone() for n, p in job.model.named_parameters() if p.grad is not None})

    iterator = iter(Run(replace(job, optimizer=lambda model: Catch(model.parameters(), lr=0.0)), plan))
    next(iterator)
    iterator.close()
    return caught


def token_job() -> Any:
    """Windows whose ranks hold very unequal numbers of target tokens."""
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForTokenClassification.from_config(config("bert")).double()
    data = [{**s, "labels": [-100 if t % 4 == 0 else t % 3 for t in s["input_ids"]]} for s in texts(16)]
    return text_job(model=model, data=data, normaliser="tokens", epochs=None, optimizer_steps=1)


def gradients() -> dict[str, dict[str, torch.Tensor]]:
    found = {name: first_gradient(text_job(model=classifier().double()), plan) for name, plan in PLANS.items()}
    # 7 samples a window: uneven shares; 2: a rank without samples under three ranks.
    for batch in (7, 2):
        found[f"windows of {batch}"] = first_gradient(
            text_job(model=classifier().double(), global_batch=batch), PLANS["packed"]
        )
    found["tokens"] = first_gradient(token_job(), PLANS["partition with recomputation"])
    return found


def losses() -> dict[str, list[float]]:
    job = text_job(data=texts(80), epochs=2, clip_norm=1.0)
    found = {"20 steps": [step.loss for step in Run(job, PLANS["packed"])]}
    overflowing = point_job(
        60,
        loss=lambda model, batch: point_loss(model, batch) * 300,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-4),
    )
    run = Run(overflowing, Plan(precision="fp16", micro_batching="fixed", micro_batch=8, loader=INLINE))
    found["fp16 overflow"] = [step.loss for step in run]
    found["overflows"] = [run.scaler.overflows]
    return found


def refusal() -> str:
    """An error on the first rank must reach all of them."""
    try:
        Run(text_job(model=classifier("deberta-v2")), Plan(micro_batching="packed"))
    except NearpeakError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def start() -> bool:
    """Ranks that begin with other weights train with the first rank's."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    job = text_job(model=classifier(seed=rank))
    reference = copy.deepcopy(classifier(seed=0).state_dict())
    Run(job, PLANS["fixed"])
    return all(torch.equal(reference[k], v) for k, v in job.model.state_dict().items())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {"gradients": gradients(), "losses": losses(), "refusal": refusal(), "start": start()}
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    torch.save(found["gradients"], folder / f"gradients_{rank}.pt")
    (folder / f"rest_{rank}.json").write_text(json.dumps({k: v for k, v in found.items() if k != "gradients"}))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
