"""The probe inside real processes: what it records, and that the training does not notice."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from watched import environment, run, run_script, script

from nearpeak.recording import PHASES, Recording
from nearpeak.recording.process_facts import ProcessFacts

pytest.importorskip("torch")

RANKS = """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model, optimizer, data = make()
    model = DistributedDataParallel(model)
    for values, kinds in DataLoader(data, batch_size=32):
        step(model, optimizer, values, kinds)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""
TELLING = """
    losses = []
    model = train(12, each=lambda model, loss: losses.append(loss.item().hex()))
    print(losses, torch.rand(1).item().hex(), sum(p.double().sum() for p in model.parameters()).item().hex())
"""


@functools.cache
def plain_digest() -> str:
    """What twenty steps learn without a probe."""
    with tempfile.TemporaryDirectory() as folder:
        text = "print(sum(p.sum() for p in train(20).parameters()).item().hex())"
        return run_script(Path(folder), text, watched=False).stdout


def recorded(folder: Path) -> Recording:
    return Recording(folder / "run")


def test_records_steps_whose_phases_sum(tmp_path: Path) -> None:
    done = run_script(tmp_path, "train(20, each=lambda model, loss: loss.item())")
    assert (done.returncode, done.stderr) == (0, "")
    (process,) = recorded(tmp_path).processes
    assert (process.process, process.rank, process.fault, process.lost_steps) == (0, None, None, 0)
    assert process.ended_ns
    steps = recorded(tmp_path).steps()
    assert [step.step for step in steps] == list(range(20))
    for step in steps:
        spent = {name: getattr(step, f"{name}_ms") for name in PHASES}
        assert sum(spent.values()) == pytest.approx(1e3 * step.wall_s, rel=1e-6)
        assert min(spent[name] for name in ("input", "forward", "backward", "optimizer")) > 0
        assert (step.samples, step.micro_batches) == (16, 1)
        assert step.fetch_ms is not None and 0 < step.fetch_ms < spent["input"]
    assert sum(step.syncs or 0 for step in steps) == 19  # the last comes after the last step
    (sync,) = [place for place in recorded(tmp_path).stacks if place.phase == "sync"]
    assert "script.py" in sync.frames and sync.total_ms


def test_training_is_bit_identical(tmp_path: Path) -> None:
    plain, watched = (run_script(tmp_path, TELLING, watched=watched) for watched in (False, True))
    assert watched.stdout == plain.stdout
    assert re.search(r"0x1\.[0-9a-f]+p", plain.stdout)
    assert len(recorded(tmp_path).steps()) == 12


def test_facts_of_the_process(tmp_path: Path) -> None:

    assert run_script(tmp_path, "train(5)").returncode == 0
    facts = ProcessFacts.from_json(recorded(tmp_path).processes[0].facts)
    assert (facts.framework, facts.model, facts.optimizer, facts.device) == ("pytorch", "Sequential", "AdamW", "cpu")
    assert (facts.loader_workers, facts.loader_batch_size, facts.dataset_samples) == (0, 16, 256)
    assert (facts.parameters, facts.trainable_tensors, facts.parameter_dtype) == (
        16 * 32 + 32 + 32 * 4 + 4,
        4,
        "float32",
    )
    assert (facts.can_fuse, facts.optimizer_options["fused"]) == (True, None)


def test_workers_report_themselves(tmp_path: Path) -> None:
    text = "if __name__ == '__main__': train(32, workers=2); time.sleep(0.7); train(4)"
    assert run_script(tmp_path, text).returncode == 0
    workers = recorded(tmp_path).workers
    assert sum(worker.batches for worker in workers) >= 32
    assert all(worker.fetch_ms > 0 and worker.first_batch_ms for worker in workers)
    assert recorded(tmp_path).steps()[5].fetch_ms is None


def test_spawned_workers_need_nothing_of_ours(tmp_path: Path) -> None:
    text = """
    import torch.multiprocessing
    if __name__ == "__main__":
        torch.multiprocessing.set_start_method("spawn")
        train(4, workers=1)
    """
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(recorded(tmp_path).steps()) == 4


def test_evaluation_and_saving_are_phases_and_events(tmp_path: Path) -> None:
    text = """
    def each(model, loss):
        model.eval()
        with torch.no_grad():
            for values, _ in DataLoader(make()[2], batch_size=64):
                model(values).argmax(1).tolist()
        model.train()
        torch.save(model.state_dict(), "last.pt")
    train(4, each=each)
    """
    assert run_script(tmp_path, text).returncode == 0
    kinds = [event.kind for event in recorded(tmp_path).events]
    assert (kinds.count("evaluation"), kinds.count("checkpoint")) == (4, 4)
    for step in recorded(tmp_path).steps(1):
        assert step.evaluation_ms and step.checkpoint_ms
        assert (step.samples, step.syncs) == (16, 0)


def test_each_rank_has_rows_of_its_own(tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script(tmp_path, RANKS))]
    done = run(sys.executable, *launch, watched=tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    processes = recorded(tmp_path).processes
    assert [(process.process, process.rank, process.world_size) for process in processes] == [(0, 0, 2), (1, 1, 2)]
    for process in processes:
        steps = recorded(tmp_path).steps(process=process.process)
        assert len(steps) == 8
        assert all(step.communication_ms for step in steps[1:])


def test_under_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    text = """
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model, optimizer, data = make()
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32))
    for values, kinds in loader:
        loss = nn.functional.cross_entropy(model(values), kinds)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    """
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", str(script(tmp_path, text))]
    assert run(sys.executable, *launch, watched=tmp_path / "run", cwd=tmp_path).returncode == 0
    assert [step.samples for step in recorded(tmp_path).steps()] == [32] * 8


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_train_inside_a_process(tmp_path: Path, method: str) -> None:
    text = f"""
    import multiprocessing
    if __name__ == "__main__":
        context = multiprocessing.get_context("{method}")
        children = [context.Process(target=train, args=(6,)) for _ in range(2)]
        for child in children: child.start()
        for child in children: child.join()
        train(3)
        print([child.exitcode for child in children])
    """
    done = run_script(tmp_path, text)
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")
    counts = [len(recorded(tmp_path).steps(process=number)) for number in range(3)]
    assert sorted(counts) == [3, 6, 6]


def test_a_shell_script_that_starts_one(tmp_path: Path) -> None:
    script(tmp_path, "train(3); sys.exit(5)")
    (tmp_path / "go.sh").write_text(f"cd / && {sys.executable} {tmp_path}/script.py\n")
    assert run("sh", "go.sh", watched=tmp_path / "run", cwd=tmp_path).returncode == 5
    assert len(recorded(tmp_path).steps()) == 3


def test_nothing_is_made_where_nothing_trains(tmp_path: Path) -> None:
    text = "print(len(list(DataLoader(make()[2], batch_size=64))), make()[0](torch.ones(1, 16)).shape)"
    assert run_script(tmp_path, text).returncode == 0
    assert recorded(tmp_path).processes == []


def test_a_script_that_fails_fails_the_same(tmp_path: Path) -> None:
    text = "train(4, each=lambda model, loss, left=[1, 2]: left.pop())"
    plain, watched = (run_script(tmp_path, text, watched=watched) for watched in (False, True))
    assert plain.returncode == watched.returncode == 1
    assert watched.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1] == "IndexError: pop from empty list"
    assert recorded(tmp_path).steps()


@pytest.mark.parametrize("hook", ["steps.StepWatch.backward_ends", "steps.StepWatch._close", "stacks.Places.add"])
def test_a_fault_of_ours_stops_the_probe_alone(tmp_path: Path, hook: str) -> None:
    module, _, name = hook.partition(".")
    owner, _, method = name.rpartition(".")
    text = f"""
    import nearpeak.observe.{module} as home
    original, calls = home.{owner}.{method}, []
    def broken(*args, **kwargs):
        calls.append(1)
        if len(calls) > 4:
            raise ValueError("our own bug")
        return original(*args, **kwargs)
    train(2)
    home.{owner}.{method} = broken
    import gc
    for each in gc.get_objects():
        if type(each).__name__ == "function" and each.__qualname__ == "Boundary.guard.<locals>.guarded":
            for cell in each.__closure__:
                if getattr(cell.cell_contents, "__name__", "") == "{method}":
                    cell.cell_contents = broken.__get__(cell.cell_contents.__self__)
    time.sleep(0.3)
    model = train(20)
    time.sleep(0.3)
    print(sum(p.sum() for p in model.parameters()).item().hex())
    """
    watched = run_script(tmp_path, text)
    assert (watched.returncode, watched.stderr) == (0, "")
    assert (
        watched.stdout
        == run_script(
            tmp_path, "print(sum(p.sum() for p in train(20).parameters()).item().hex())", watched=False
        ).stdout
    )
    (process,) = recorded(tmp_path).processes
    assert process.fault is not None and "our own bug" in process.fault


def test_a_full_disk_stops_the_recording_not_the_training(tmp_path: Path) -> None:
    text = """
    import resource, signal
    train(80, each=lambda model, loss: time.sleep(0.02))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does: writing beyond the limit is an error then
    size = max(os.path.getsize(f"run/{name}") for name in os.listdir("run"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    train(100, each=lambda model, loss: time.sleep(0.02))
    print("trained")
    """
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("nearpeak:") == 1
    assert "Training goes on" in done.stderr
    assert 20 < len(recorded(tmp_path).steps()) < 180


def test_a_folder_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    env = environment(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    path = script(tmp_path, "train(40, each=lambda model, loss: time.sleep(0.02)); print('trained')")
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("nearpeak:") == 1


def test_a_kill_leaves_what_was_trained(tmp_path: Path) -> None:
    path = script(tmp_path, "train(10_000, each=lambda model, loss: (time.sleep(0.005), print('step', flush=True)))")
    child = subprocess.Popen(
        [sys.executable, str(path)], env=environment(tmp_path / "run"), stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(200):
        child.stdout.readline()
    time.sleep(0.7)
    os.kill(child.pid, signal.SIGKILL)
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    assert len(recorded(tmp_path).steps()) >= 150
    (process,) = recorded(tmp_path).processes
    assert process.ended_ns is None


def test_ranks_that_accumulate_without_exchange(tmp_path: Path) -> None:
    text = """
    import contextlib
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model, optimizer, data = make()
    model = DistributedDataParallel(model)
    for number, (values, kinds) in enumerate(DataLoader(data, batch_size=16)):
        last = number % 4 == 3
        with contextlib.nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(values), kinds).backward()
        if last:
            time.sleep(0.05 * dist.get_rank())
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
    """
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script(tmp_path, text))]
    assert run(sys.executable, *launch, watched=tmp_path / "run", cwd=tmp_path).returncode == 0
    for process in (0, 1):
        steps = recorded(tmp_path).steps(process=process)
        # The wrapper is met in the first update.
        assert [(step.micro_batches, step.exchanges) for step in steps] == [(4, None), *[(4, 1)] * 3]
    waits = [sum(step.communication_ms or 0 for step in recorded(tmp_path).steps(1, process=rank)) for rank in (0, 1)]
    assert waits[0] > 60 > waits[1]  # the first waits inside its backward pass for the second


def test_a_scaler_that_skips(tmp_path: Path) -> None:
    text = """
    model, optimizer, data = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (values, kinds) in enumerate(DataLoader(data, batch_size=32)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(values), kinds)
        scaler.scale(loss * (float("inf") if number == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """
    assert run_script(tmp_path, text).returncode == 0
    steps = recorded(tmp_path).steps()
    assert [step.skipped_updates or 0 for step in steps] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert [step.loss_scale for step in steps[1:]] == [1024.0] * 3 + [512.0] * 4
    facts = ProcessFacts.from_json(recorded(tmp_path).processes[0].facts)
    assert (facts.grad_scaler, facts.autocast_dtype) == (True, "bfloat16")


def test_under_the_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    text = """
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    sizes = dict(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    rows = [
        {"input_ids": torch.ones(16).long(), "attention_mask": (torch.arange(16) < n).long(), "labels": n % 2}
        for n in range(1, 17)
    ]
    settings = dict(max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=2, eval_strategy="steps")
    settings |= dict(eval_steps=3, save_steps=3, logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True)
    model = BertForSequenceClassification(BertConfig(**sizes))
    Trainer(model, TrainingArguments("out", **settings), train_dataset=rows, eval_dataset=rows).train()
    """
    done = run_script(tmp_path, text)
    assert done.returncode == 0, done.stderr
    steps = recorded(tmp_path).steps()
    assert [(step.samples, step.micro_batches, step.padded_tokens) for step in steps] == [(8, 2, 128)] * 6
    assert sum(step.tokens or 0 for step in steps) == 6 * sum(range(1, 17)) / 2
    assert steps[3].evaluation_ms and steps[3].checkpoint_ms and steps[2].logging_ms
    facts = ProcessFacts.from_json(recorded(tmp_path).processes[0].facts)
    assert (facts.framework, facts.accumulation, facts.expected_steps) == ("transformers", 2, 6)
    assert facts.arguments["eval_steps"] == 3
    kinds = [event.kind for event in recorded(tmp_path).events]
    assert (kinds.count("evaluation"), kinds.count("checkpoint")) == (2, 2)


def test_a_compiled_model_is_compiled_as_before(tmp_path: Path) -> None:
    text = """
    import torch._dynamo
    model, optimizer, data = make()
    compiled = torch.compile(model, backend="eager")
    for values, kinds in DataLoader(data, batch_size=60):
        step(compiled, optimizer, values, kinds)
    print(dict(torch._dynamo.utils.counters["stats"]), dict(torch._dynamo.utils.counters["graph_break"]))
    """
    plain, watched = (run_script(tmp_path, text, watched=watched) for watched in (False, True))
    assert watched.stdout == plain.stdout
    assert "unique_graphs" in plain.stdout
    steps = recorded(tmp_path).steps()
    assert sum(step.compilations or 0 for step in steps) == 2  # the last batch is shorter
    assert steps[0].compile_ms
    assert ProcessFacts.from_json(recorded(tmp_path).processes[0].facts).wrappers == ["OptimizedModule"]
