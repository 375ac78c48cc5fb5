"""One recording for each cause: its rows, and what the finding must say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recorded_runs import event, facts, place, process, reading, steps, worker

from nearpeak.recording.schema import Row

TORCH_FETCH = "/venv/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py:54 _MapDatasetFetcher.fetch"
ON_GPU = {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3", "device_index": 0, "bf16_is_fast": True}
BUSY = {"device_forward_ms": 9.0, "device_backward_ms": 18.0, "device_optimizer_ms": 2.0, "starved_share": 0.1}
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cause, and the finding that names it."""

    kind: str
    title: str
    """Must be found in it."""
    remedy: str
    rows: tuple[Any, ...]
    without: str = ""
    """What the rule needs and a recording may lack, as a column of its steps."""
    counted: bool = True
    """Its gain is time."""
    extra: list[Row] = field(default_factory=list)


def _made(**changes: Any) -> Any:
    return process(made=facts(**changes))


def _ranks(count: int, **changes: Any) -> list[Row]:
    return [process(number, ranks=count, made=facts(**{"threads": 2, **changes})) for number in range(count)]


CASES: dict[str, Case] = {
    "no_workers": Case(
        kind="input",
        title="no workers",
        remedy=r"DataLoader\(num_workers=2, persistent_workers=True\).*decode\.py:12 Images.load",
        rows=(
            _made(loader_workers=0, cores=4),
            steps(input=25.0, columns={"fetch_ms": 24.0, "fetch_cpu_ms": 24.0, "main_cpu_ms": 54.0, "cpu_ms": 70.0}),
            place("input", 40, "/home/me/decode.py:12 Images.load", "/me/decode.py:8 Images.__getitem__", TORCH_FETCH),
        ),
        without="input_ms",
    ),
    "few_workers": Case(
        kind="input",
        title="too few workers",
        remedy=r"TrainingArguments\(dataloader_num_workers=\d+, dataloader_persistent_workers=True\)",
        rows=(
            _made(loader_workers=1, framework="transformers"),
            steps(input=25.0, columns={"cpu_ms": 60.0}),
            [worker(1, 60, 54.0, 50.0)],
        ),
        without="input_ms",
    ),
    "processing": Case(
        kind="input",
        title="keeps all 4 cores busy",
        remedy="once, before training",
        rows=(
            _made(loader_workers=4),
            steps(input=25.0, columns={"cpu_ms": 60.0, "worker_cpu_ms": 155.0}),
            [worker(pid, 15, 200.0, 190.0) for pid in (1, 2, 3, 4)],
        ),
        without="input_ms",
    ),
    "storage": Case(
        kind="input",
        title="slow storage",
        remedy=r"Read ahead: DataLoader\(num_workers=\d",
        rows=(
            _made(loader_workers=0),
            steps(input=25.0, columns={"fetch_ms": 24.0, "fetch_cpu_ms": 1.0, "main_cpu_ms": 31.0}),
        ),
        without="input_ms",
    ),
    "tokenising": Case(
        kind="input",
        title="tokenising on the fly",
        remedy=r"dataset\.map\(tokenize, batched=True\)",
        rows=(
            _made(loader_workers=0, environment={"TOKENIZERS_PARALLELISM": "false"}),
            steps(input=25.0, columns={"fetch_ms": 24.0, "fetch_cpu_ms": 24.0, "main_cpu_ms": 54.0}),
            place("input", 40, "/x/site-packages/transformers/tokenization_utils_tokenizers.py:9 call", "/me/t.py:3 f"),
        ),
        without="input_ms",
    ),
    "collator": Case(
        kind="input",
        title=r"slow collator at /me/train\.py:9 number_by_number",
        remedy="torch.stack",
        rows=(
            _made(loader_workers=0),
            steps(input=25.0, columns={"fetch_ms": 24.0, "fetch_cpu_ms": 24.0, "main_cpu_ms": 54.0}),
            place("input", 40, "/me/train.py:9 number_by_number", TORCH_FETCH),
            place("input", 4, "/me/train.py:4 Data.__getitem__", TORCH_FETCH),
        ),
        without="input_ms",
    ),
    "restarts": Case(
        kind="input",
        title="started anew for each epoch",
        remedy=r"DataLoader\(num_workers=2, persistent_workers=True\)",
        rows=(
            _made(loader_workers=2, persistent_workers=False),
            steps(input=lambda n: 120.0 if n % 6 == 0 else 0.2),
            [worker(pid, 3, 2.0, 2.0, 90.0) for pid in range(20)],
            [event("loader_start", at, 20.0) for at in range(310, 3000, 300)],
        ),
        without="input_ms",
    ),
    "restarts whose end takes longest": Case(
        kind="input",
        title="started anew for each epoch",
        remedy="persistent_workers=True",
        rows=(
            _made(loader_workers=2, persistent_workers=False),
            steps(input=lambda n: 120.0 if n % 6 == 0 else 0.2),
            [worker(pid, 3, 2.0, 2.0, 8.0) for pid in range(20)],
            [event("loader_start", 300.0 + 480 * n, 5.0, in_step=6 * n) for n in range(1, 8)],
        ),
        without="input_ms",
    ),
    "pageable": Case(
        kind="copy",
        title="from pageable memory",
        remedy=r"pin_memory=True\) and batch.to\(device, non_blocking=True\)",
        rows=(
            _made(**ON_GPU, autocast_dtype="bfloat16"),
            steps(copy=5.0, columns={"copies": 2, "copied_bytes": 10**7, "pageable_bytes": 10**7}),
        ),
        without="copy_ms",
    ),
    "tiny_copies": Case(
        kind="copy",
        title="200 copies of 1.0 KiB",
        remedy="into one tensor",
        rows=(
            _made(**ON_GPU, autocast_dtype="bfloat16"),
            steps(copy=5.0, columns={"copies": 200, "copied_bytes": 204_800, "pageable_bytes": 0}),
        ),
        without="copy_ms",
    ),
    "launch": Case(
        kind="launch",
        title="next kernel to be launched",
        remedy="reduce-overhead",
        rows=(
            _made(**ON_GPU, autocast_dtype="bfloat16"),
            steps(columns={**BUSY, "starved_share": 0.9}),
            [reading(at, 0, busy_percent=40.0) for at in range(300, 1500, 100)],
        ),
        without="device_forward_ms",
    ),
    "outside": Case(
        kind="host_work",
        title=r"outside the forward pass.*at /me/train\.py:30 report",
        remedy="Leave it out",
        rows=(steps(other=12.0), place("other", 9, "/me/train.py:30 report")),
        without="other_ms",
    ),
    "histograms": Case(
        kind="logging",
        title=r"go to logging at /me/train\.py:30 log",
        remedy="fiftieth",
        rows=(steps(other=12.0), place("other", 9, "/usr/lib/python3.12/json/encoder.py:9 f", "/me/train.py:30 log")),
        without="other_ms",
    ),
    "logging": Case(
        kind="logging",
        title="go to logging",
        remedy=r"Trainer\(log_every_n_steps=50\)",
        rows=(_made(framework="lightning"), steps(logging=6.0, columns={"syncs": 1, "sync_ms": 0.1})),
        without="logging_ms",
    ),
    "sync": Case(
        kind="sync",
        title=r"40 values a step are read from tensors at /me/train\.py:21 metrics",
        remedy="fiftieth",
        rows=(
            steps(logging=8.0, columns={"syncs": 40, "sync_ms": 7.5}),
            place("sync", 2000, "/x/site-packages/torch/_tensor.py:1 item", "/me/train.py:21 metrics", total_ms=400.0),
        ),
        without="sync_ms",
    ),
    "communication": Case(
        kind="communication",
        title="exchange between ranks that no compute hides",
        remedy="bucket_cap_mb",
        rows=(_ranks(2), *(steps(process=n, communication=9.0) for n in (0, 1))),
        without="communication_ms",
    ),
    "each_micro_batch": Case(
        kind="communication",
        title="after each of 4 micro-batches",
        remedy=r"model\.no_sync\(\)",
        rows=(
            _ranks(2, wrappers=["DistributedDataParallel"]),
            *(
                steps(process=n, backward=40.0, columns={"micro_batches": 4, "exchanges": 4, "backward_cpu_ms": 18.0})
                for n in (0, 1)
            ),
        ),
        without="backward_ms",
    ),
    "straggler": Case(
        kind="straggler",
        title=r"Rank 1 is 20\.0 ms .* slower .* phase `input`",
        remedy="Give rank 1 its data",
        rows=(_ranks(2), steps(process=0, backward=38.0), steps(process=1, input=20.2)),
        without="backward_ms",
    ),
    "padding": Case(
        kind="padding",
        title="60 % of the tokens computed are padding",
        remedy='padding="longest"',
        rows=(steps(columns={"tokens": 400, "padded_tokens": 1000}),),
        without="tokens",
    ),
    "fp32": Case(
        kind="precision",
        title="fp32 arithmetic on NVIDIA H100",
        remedy=r"torch\.autocast\(\"cuda\", torch\.bfloat16\).*set_float32_matmul_precision",
        rows=(_made(**ON_GPU, tf32=False), steps(columns=BUSY)),
    ),
    "unfused": Case(
        kind="optimizer",
        title="AdamW's update is not fused",
        remedy=r"torch\.optim\.AdamW\(…, fused=True\)",
        rows=(_made(optimizer_options={"foreach": False}), steps(optimizer=12.0)),
        without="optimizer_ms",
    ),
    "recompiled": Case(
        kind="recompile",
        title="compiled 28 times",
        remedy="dynamic=True",
        rows=(
            steps(
                other=lambda n: 40.0 if n % 2 else 0.8,
                columns={"compilations": lambda n: n % 2, "compile_ms": lambda n: 39.0 * (n % 2)},
            ),
        ),
        without="compile_ms",
    ),
    "collapsed_scale": Case(
        kind="loss_scale",
        title="its scale has collapsed",
        remedy="bfloat16",
        rows=(
            steps(columns={"skipped_updates": lambda n: n % 2, "loss_scale": lambda n: 2.0 ** (8 - n)}),
            _made(autocast_dtype="float16", grad_scaler=True),
        ),
        counted=False,
    ),
    "no_scaler": Case(
        kind="loss_scale",
        title="without a gradient scaler",
        remedy="GradScaler",
        rows=(steps(), _made(autocast_dtype="float16", grad_scaler=False)),
        counted=False,
    ),
    "leak": Case(
        kind="memory_growth",
        title="grows by 4,096 KiB a step",
        remedy=r"loss\.item\(\)",
        rows=(steps(columns={"rss_bytes": lambda n: GIB + n * 2**22}),),
        without="rss_bytes",
        counted=False,
    ),
    "fragmented": Case(
        kind="fragmentation",
        title="never in use",
        remedy="expandable_segments:True",
        rows=(
            _made(**ON_GPU, autocast_dtype="bfloat16"),
            steps(columns={**BUSY, "reserved_bytes": 76 * GIB, "peak_bytes": 48 * GIB}),
            [reading(at, 0, memory_total_bytes=80 * GIB) for at in (400, 500)],
        ),
        without="peak_bytes",
        counted=False,
    ),
    "evaluation": Case(
        kind="evaluation",
        title="300 ms every 10 steps",
        remedy=r"TrainingArguments\(eval_strategy=\"steps\", eval_steps=500\)",
        rows=(
            _made(framework="transformers"),
            steps(65, evaluation=lambda n: 300.0 if n % 10 == 9 else 0.0),
            [event("evaluation", 560 + 600 * k, 300.0) for k in range(6)],
        ),
        without="evaluation_ms",
    ),
    "checkpoints": Case(
        kind="checkpointing",
        title="80 ms every 5 steps",
        remedy="Save every 200 steps",
        rows=(
            steps(checkpoint=lambda n: 80.0 if n % 5 == 4 else 0.0),
            [event("checkpoint", 310 + 230 * k, 80.0) for k in range(11)],
        ),
        without="checkpoint_ms",
    ),
    "collected": Case(
        kind="host_work",
        title="garbage collector takes",
        remedy=r"Leave out gc\.collect\(\) at /me/train\.py:7",
        rows=(steps(other=15.0, columns={"collections": 1, "collect_ms": 14.0}), place("other", 9, "/me/train.py:7 f")),
        without="collect_ms",
    ),
    "anomaly": Case(
        kind="debugging",
        title="anomaly detection is on",
        remedy=r"set_detect_anomaly\(False\)",
        rows=(_made(anomaly_detection=True), steps()),
    ),
    "idle_cores": Case(
        kind="threads",
        title="1 of 4 CPU cores compute: 3 are left idle",
        remedy=r"torch\.set_num_threads\(4\)",
        rows=(_made(threads=1, loader_workers=0), steps(columns={"cpu_ms": 30.0})),
    ),
    "too_many_threads": Case(
        kind="threads",
        title="48 threads compute on 4 CPU cores",
        remedy="OMP_NUM_THREADS=4",
        rows=(_made(threads=48), steps()),
    ),
    "data_parallel": Case(
        kind="parallelism",
        title=r"nn\.DataParallel",
        remedy="torchrun --nproc-per-node",
        rows=(_made(**ON_GPU, autocast_dtype="bfloat16", wrappers=["DataParallel"]), steps(columns=BUSY)),
    ),
    "unused_search": Case(
        kind="communication",
        title="searches the graph",
        remedy="find_unused_parameters=False",
        rows=(_ranks(2, find_unused_parameters=True), steps(process=0), steps(process=1)),
    ),
    "tiny_micro_batches": Case(
        kind="underfilled",
        title="16 micro-batches of 2 samples",
        remedy=r"DataLoader\(batch_size=32\) and no accumulation",
        rows=(_made(trainable_tensors=50), steps(columns={"micro_batches": 16, "samples": 32})),
        without="micro_batches",
    ),
    "tiny_batch_on_device": Case(
        kind="underfilled",
        title="waits for its host throughout",
        remedy="another training",
        rows=(
            _made(**ON_GPU, autocast_dtype="bfloat16"),
            steps(columns={**BUSY, "starved_share": 0.9, "peak_bytes": GIB}),
            [reading(at, 0, memory_total_bytes=80 * GIB) for at in (400, 500)],
        ),
        without="starved_share",
        counted=False,
    ),
    "whole_dataset_each": Case(
        kind="steps",
        title="goes through the whole dataset",
        remedy="DistributedSampler",
        rows=(
            _ranks(2, batches_per_epoch=100, loader_batch_size=32, dataset_samples=3190),
            steps(process=0),
            steps(process=1),
        ),
        counted=False,
    ),
    "all_warm_up": Case(
        kind="steps",
        title="warm-up takes 500 steps, the whole training only 120",
        remedy="warmup_steps=6",
        rows=(_made(framework="transformers", expected_steps=120, arguments={"warmup_steps": 500}), steps()),
        counted=False,
    ),
    "few_updates": Case(
        kind="steps",
        title="Only 12 updates in all",
        remedy="lower the accumulation",
        rows=(
            _made(expected_steps=12, accumulation=64, dataset_samples=2000, epochs=3.0),
            steps(columns={"samples": 512, "micro_batches": 64}, forward=300.0, backward=600.0),
        ),
        without="samples",
        counted=False,
    ),
    "bursts": Case(
        kind="input",
        title="workers have time to spare",
        remedy=r"DataLoader\(prefetch_factor=8\), now 2",
        rows=(
            _made(loader_workers=4, loader_prefetch_factor=2),
            steps(input=25.0, columns={"cpu_ms": 60.0}),
            [worker(pid, 15, 20.0, 18.0) for pid in (1, 2, 3, 4)],
        ),
        without="input_ms",
    ),
    "launch_by_pace": Case(
        kind="launch",
        title="about as long as starting them",
        remedy="reduce-overhead",
        rows=(_made(**ON_GPU, trainable_tensors=300), steps()),
    ),
    "read_in_a_loop": Case(
        kind="sync",
        title=r"500 values a step are read from tensors at /me/train\.py:21 <module>: 11\.8 ms",
        remedy="fiftieth",
        rows=(
            steps(logging=1.0, other=10.8, columns={"syncs": 500, "sync_ms": 0.8}),
            place("sync", 9000, "/me/train.py:21 <module>", total_ms=40.0),
            place("other", 40, "/me/train.py:21 <listcomp>", "/me/train.py:21 <module>"),
        ),
        without="syncs",
    ),
    "startup": Case(
        kind="startup",
        title="The first 6 steps take 40 s beyond the usual",
        remedy="TORCHINDUCTOR_FX_GRAPH_CACHE",
        rows=(steps(forward=lambda n: 20_009.0 if n in (0, 5) else 9.0),),
        without="wall_s",
    ),
}
