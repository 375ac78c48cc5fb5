"""`nearpeak predict`: what a plan would need and take, before a GPU is rented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nearpeak.cli._recompute import check_auto, chosen_recompute, print_recompute, recompute_document, save_choice
from nearpeak.cli._recordings import refuse_unwritable, write_text

if TYPE_CHECKING:
    from nearpeak.planner.recompute import RecomputeChoice
    from nearpeak.predict.cards import DeviceModel
    from nearpeak.predict.memory import MemoryForecast
    from nearpeak.predict.reading import Reading
    from nearpeak.predict.request import CaptureRequest
    from nearpeak.predict.step_trace import StepTrace

__all__ = ["command"]

SCHEMA = 1
MIB = 1 << 20
ROWS_SHOWN = 10


@click.group("predict")
def command() -> None:
    """Say what a training step would need on a GPU that is not here."""


@command.command("memory")
@click.argument("model")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Samples of a micro-batch.")
@click.option("--seq", type=click.IntRange(min=1), help="Tokens of a sample.")
@click.option("--image", type=click.IntRange(min=1), help="Side of an image in pixels.")
@click.option("--gpu", "gpu_name", help='The card, such as "RTX 4090".')
@click.option("--gpu-memory", help="Its memory, where its name is not known, such as 24GiB.")
@click.option("--precision", default="fp32", show_default=True, help="fp32, bf16, fp16, bf16-weights, fp16-weights.")
@click.option("--optimizer", default="adamw", show_default=True, help="adamw, adam, sgd, sgd-momentum, …")
@click.option("--implementation", default="foreach", show_default=True, help="foreach, fused, for-loop.")
@click.option(
    "--recompute", type=click.Choice(["none", "model", "blocks", "every_nth", "selective", "auto"]), default="none",
    show_default=True, help="What backward computes again; model: its own way; auto: as little as the memory allows.",
)  # fmt: skip
@click.option("--recompute-every", type=click.IntRange(min=2), default=2, show_default=True, help="With every_nth.")
@click.option("--memory-budget", help="With auto: share of the activations, such as 0.5, or a peak, such as 10GiB.")
@click.option("--save-plan", type=click.Path(dir_okay=False, path_type=Path), help="With auto: write the plan here.")
@click.option("--lora", "lora_rank", type=click.IntRange(min=1), help="Train adapters of this rank only.")
@click.option("--task", help="Head of an HF model: causal-lm, sequence-classification, …")
@click.option("--source", default=None, help="huggingface, timm, torchvision, function; else by the name.")
@click.option("--accumulate", type=click.IntRange(min=1), default=1, show_default=True, help="Micro-batches a step.")
@click.option("--clip-norm", type=float, help="Gradients are clipped to this norm.")
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Change the model's configuration.")
@click.option("--layout", help="Several devices: ddp:8, zero1:8, zero2:8, fsdp:8.")
@click.option(
    "--outputs-until", type=click.Choice(["next_step", "step_end", "backward"]), default=None,
    help="How long the loop holds what forward returns; transformers' Trainer: backward.",
)  # fmt: skip
@click.option("--alloc-conf", default="", help="PYTORCH_CUDA_ALLOC_CONF of the run.")
@click.option("--cudnn-benchmark", is_flag=True, help="The run sets torch.backends.cudnn.benchmark.")
@click.option("--channels-last", is_flag=True, help="The run puts the model into that memory format.")
@click.option("--find-batch", is_flag=True, help="Find the largest micro-batch that fits; needs --gpu.")
@click.option("--calibrate", metavar="used=SIZE[,batch=N]", help="What nvidia-smi showed in a run like this.")
@click.option("--time-limit", type=float, default=120.0, show_default=True, help="Seconds for one capture.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML report or JSON here.")
@click.option("--force", is_flag=True, help="With --output: replace the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def memory(model: str, output: Path | None, force: bool, as_json: bool, **given: Any) -> int:
    """Peak memory of one training step of MODEL, and what it is made of.

    MODEL is a Hugging Face model (a name, or a folder with a config.json), a timm or torchvision model, or
    module:function that returns (model, batch) or (model, batch, loss, optimizer). Needs torch, no GPU, no weights.
    """
    if output is not None and output.exists() and not force:
        raise click.UsageError(f"{output} exists; --force replaces it.")
    refuse_unwritable("--output", output)
    if given["find_batch"] and not (given["gpu_name"] or given["gpu_memory"]):
        raise click.UsageError("--find-batch needs --gpu or --gpu-memory: the card that it shall fit.")
    request, card = _request(model, given), _card(given)
    _layout(given)  # both refuse what is wrong in them, before anything is captured
    _settings(given)
    check_auto(given, force)
    reading = _reading(request, given)
    recompute: RecomputeChoice | None = None
    if given["recompute"] == "auto":
        trace, recompute = chosen_recompute(request, card, given, lambda t: _forecast(t, card, reading, given))
        found = None
    else:
        trace, request, found = _trace(request, card, reading, given)
    forecast = _forecast(trace, card, reading, given)
    document = _document(request, card, forecast, found) | recompute_document(recompute)
    if as_json:
        from nearpeak.report.document import to_json

        click.echo(to_json(document))
    else:
        _print(request, card, forecast, found)
        if recompute is not None:
            print_recompute(recompute)
    if output is not None:
        _write(output, request, card, forecast, document)
    if recompute is not None and given["save_plan"] is not None:
        save_choice(recompute, request, given["save_plan"])
    return 0


# -- from options ------------------------------------------------------------------------------------------------------


def _request(model: str, given: dict[str, Any]) -> CaptureRequest:
    from nearpeak.predict.request import PREPARE_RECOMPUTE, CaptureRequest, Lora

    policy = given["recompute"]
    own = policy == "model" or (policy == "blocks" and _kind(model, given["source"]) in ("huggingface", "timm"))
    applied = policy not in ("none", "model", "auto") and not own
    card = _card(given)
    return CaptureRequest(
        model=model,
        kind=_kind(model, given["source"]),
        batch=given["batch"],
        sequence=given["seq"],
        image=given["image"],
        task=given["task"],
        precision=given["precision"],
        optimizer=given["optimizer"],
        implementation=given["implementation"],
        recompute=own,
        lora=None if given["lora_rank"] is None else Lora(rank=given["lora_rank"]),
        micro_batches=given["accumulate"],
        clip_norm=given["clip_norm"],
        cudnn_benchmark=given["cudnn_benchmark"],
        channels_last=given["channels_last"],
        compute_capability=(8, 0) if card is None else card.compute_capability,
        overrides=dict(_override(each) for each in given["overrides"]),
        prepare=PREPARE_RECOMPUTE if applied else None,
        prepare_arguments={"policy": policy, "every": given["recompute_every"]} if applied else {},
    )


def _kind(model: str, source: str | None) -> Any:
    """By the form of the name: what is neither a function nor one of transformers' is looked for in timm."""
    if source is not None:
        return source
    if re.fullmatch(r"[\w.]+:\w+", model):
        return "function"
    name, _, rest = model.partition("/")
    return name if name in ("timm", "torchvision") and rest else "huggingface"


def _override(text: str) -> tuple[str, Any]:
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text}: must be NAME=VALUE.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _card(given: dict[str, Any]) -> DeviceModel | None:
    from nearpeak.predict.cards import DeviceModel, card_named
    from nearpeak.predict.reading import parse_size

    name, memory_text = given["gpu_name"], given["gpu_memory"]
    if memory_text is not None:
        size = parse_size(memory_text)
        return DeviceModel(name or "card", size, size, (8, 0), "as given")
    return None if name is None else card_named(name)


def _reading(request: CaptureRequest, given: dict[str, Any]) -> Reading | None:
    """Replays what the reading was taken of, if it was another batch."""
    if given["calibrate"] is None:
        return None
    from dataclasses import replace

    from nearpeak.predict.capture import capture
    from nearpeak.predict.memory import peaks
    from nearpeak.predict.reading import Reading, parse_reading

    used, batch = parse_reading(given["calibrate"])
    trace = capture(replace(request, batch=batch or request.batch), time_limit_s=given["time_limit"])
    until = given["outputs_until"] or "next_step"
    played = peaks(_laid_out(trace, given), outputs_until=until, settings=_settings(given))
    return Reading(used, max(0, used - played.peak_reserved))


def _settings(given: dict[str, Any]) -> Any:
    from nearpeak.predict.allocator_settings import parse_settings

    return parse_settings(given["alloc_conf"])


def _layout(given: dict[str, Any]) -> Any:
    if given["layout"] is None:
        return None
    from nearpeak.predict.layout import Layout

    scheme, _, devices = given["layout"].partition(":")
    if not devices.isdigit():
        raise click.UsageError(f"--layout {given['layout']}: must be SCHEME:DEVICES, such as fsdp:8.")
    return Layout(scheme, int(devices))


def _laid_out(trace: StepTrace, given: dict[str, Any]) -> StepTrace:
    """The step of one device of the layout."""
    from nearpeak.predict.layout import on_layout

    layout = _layout(given)
    return trace if layout is None else on_layout(trace, layout)


# -- predicting --------------------------------------------------------------------------------------------------------


def _trace(
    request: CaptureRequest, card: DeviceModel | None, reading: Reading | None, given: dict[str, Any]
) -> tuple[StepTrace, CaptureRequest, str | None]:
    """The step, at the largest batch that fits if that is asked for."""
    from dataclasses import replace

    from nearpeak.predict.capture import capture

    if not given["find_batch"]:
        return capture(request, time_limit_s=given["time_limit"]), request, None
    from nearpeak.predict.largest import largest_batch

    found = largest_batch(request, lambda trace: _forecast(trace, card, reading, given).fits is True)
    return found.trace, replace(request, batch=found.batch), found.reason.because


def _forecast(
    trace: StepTrace, card: DeviceModel | None, reading: Reading | None, given: dict[str, Any]
) -> MemoryForecast:
    from nearpeak.predict.layout import NCCL_BYTES
    from nearpeak.predict.memory import forecast_memory

    extra = 0 if given["layout"] is None else NCCL_BYTES
    return forecast_memory(
        _laid_out(trace, given),
        card,
        settings=_settings(given),
        outputs_until=given["outputs_until"],
        extra_device_bytes=extra,
        reading=reading,
    )


# -- results -----------------------------------------------------------------------------------------------------------


def _document(
    request: CaptureRequest, card: DeviceModel | None, forecast: MemoryForecast, found: str | None
) -> dict[str, Any]:
    from nearpeak.report.document import interval_document

    return {
        "schema": SCHEMA,
        "model": request.model,
        "batch": request.batch,
        "found": found,
        "gpu": None if card is None else _card_document(card),
        "allocated_bytes": interval_document(forecast.allocated.interval),
        "reserved_bytes": interval_document(forecast.reserved.interval),
        "device_used_bytes": interval_document(forecast.device_used.interval),
        "calibrated_on": forecast.device_used.calibrated_on,
        "fits": forecast.fits,
        "why": forecast.why,
        "by_category": forecast.by_category,
        "by_module": [
            {"module": module, "bytes": sum(sizes.values()), "by_category": sizes}
            for module, sizes in sorted(forecast.by_module.items(), key=lambda item: -sum(item[1].values()))
        ],
        "peak_phase": forecast.peak_phase,
        "parameters": forecast.parameters,
        "trainable_parameters": forecast.trainable_parameters,
        "step_flops": forecast.flops,
        "risks": [{"name": risk.name, "extra_bytes": risk.extra_bytes} for risk in forecast.risks],
        "unsupported": [],
    }


def _card_document(card: DeviceModel) -> dict[str, Any]:
    return {
        "name": card.name,
        "memory_bytes": card.memory_bytes,
        "usable_bytes": card.usable_bytes,
        "memory_source": card.source,
    }


def _write(
    output: Path,
    request: CaptureRequest,
    card: DeviceModel | None,
    forecast: MemoryForecast,
    document: dict[str, Any],
) -> None:
    from nearpeak.report.document import to_json

    if output.suffix in (".html", ".htm"):
        from nearpeak.report.html.memory_page import memory_page

        which = f"{request.model}, micro-batch {request.batch:,}" + (f", {card.name}" if card else "")
        shown = memory_page(forecast, which, card.memory_bytes if card else None)
        write_text(output, shown)
    else:
        write_text(output, to_json(document) + "\n")


def _print(request: CaptureRequest, card: DeviceModel | None, forecast: MemoryForecast, found: str | None) -> None:
    from nearpeak.report import terminal

    rows = [
        ["tensors (allocated)", *_interval(forecast.allocated)],
        ["allocator (reserved)", *_interval(forecast.reserved)],
        ["card (nvidia-smi)", *_interval(forecast.device_used)],
    ]
    terminal.print_table(f"{request.model}, micro-batch {request.batch:,}, MiB", ["", "low", "likely", "high"], rows)
    click.echo()
    shares = sorted(forecast.by_category.items(), key=lambda item: -item[1])
    total = sum(forecast.by_category.values())
    of_all = [[name.replace("_", " "), _mib(size), f"{size / total:.0%}"] for name, size in shares if size]
    terminal.print_table(f"Held at the peak, in {forecast.peak_phase}", ["what", "MiB", "share"], of_all)
    click.echo()
    terminal.print_table("By module", ["module", "MiB", "mostly"], _modules(forecast))
    click.echo()
    if card is not None:
        verdict = {True: "Fits", False: "Does not fit", None: "Too close to say"}[forecast.fits]
        terminal.print_note(verdict, forecast.why, found)
    for risk in forecast.risks:
        extra = None if risk.extra_bytes is None else f"Up to {_mib(risk.extra_bytes)} MiB more."
        terminal.print_note("Uncertain", risk.name + ".", extra)


def _modules(forecast: MemoryForecast) -> list[list[str]]:
    """Numbered siblings as one line: a model's blocks are alike."""
    grouped: dict[str, dict[str, int]] = {}
    for module, sizes in forecast.by_module.items():
        name = re.sub(r"\.\d+(?=\.|$)", ".*", "." + module).lstrip(".") or "(outside of modules)"
        into = grouped.setdefault(name, {})
        for category, size in sizes.items():
            into[category] = into.get(category, 0) + size
    largest = sorted(grouped.items(), key=lambda item: -sum(item[1].values()))[:ROWS_SHOWN]
    return [
        [name, _mib(sum(sizes.values())), max(sizes, key=sizes.__getitem__).replace("_", " ")]
        for name, sizes in largest
    ]


def _interval(estimate: Any) -> list[str]:
    interval = estimate.interval
    return [_mib(interval.low), _mib(interval.likely), _mib(interval.high)]


def _mib(size: float) -> str:
    return f"{size / MIB:,.0f}"
