"""Settings: where they come from, and what a wrong one says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nearpeak.errors import SettingError
from nearpeak.plan import Plan, save_plan
from nearpeak.tasks.text_classification.config import load_config, with_output

SMALLEST = '[data]\ntrain = "train.csv"\n[model]\nfrom_scratch = "tiny"\n'


def write(folder: Path, text: str = SMALLEST) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_and_paths_from_the_files_own_folder(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    assert config.data.train == str(tmp_path / "train.csv")
    assert config.output.folder == str(tmp_path / "output")
    assert (config.job.global_batch, config.job.length, config.plan) == (32, {"epochs": 3.0}, "auto")


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path, SMALLEST + "[job]\nglobal_batch = 8\nseed = 3\n")
    config = with_output(load_config(path, ["job.global_batch=64"]), "elsewhere", False)
    origins = {name: origin for name, _, origin in config.described()}
    values = {name: value for name, value, _ in config.described()}
    assert (values["job.global_batch"], origins["job.global_batch"]) == (64, "command line")
    assert (values["job.seed"], origins["job.seed"]) == (3, "config.toml")
    assert origins["job.warmup"] == "default"
    assert (values["output.folder"], origins["output.folder"]) == ("elsewhere", "command line")
    assert (values["plan"], origins["plan"]) == ("auto", "default")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("job.schedule=cosine", ("job", "schedule", "cosine")),
        ('job.schedule="cosine"', ("job", "schedule", "cosine")),
        ("job.learning_rate=1e-3", ("job", "learning_rate", 1e-3)),
        ("output.overwrite=true", ("output", "overwrite", True)),
        ('data.label=["a", "b"]', ("data", "label", ("a", "b"))),
        ("data.label=sentiment=x", ("data", "label", "sentiment=x")),
        ("output.evaluate_every=50", ("output", "evaluate_every", 50)),
    ],
)
def test_overrides_are_toml_values_or_text(tmp_path: Path, override: str, expected: tuple[str, str, object]) -> None:
    section, key, value = expected
    assert getattr(getattr(load_config(write(tmp_path), [override]), section), key) == value


def test_a_path_of_the_command_line_is_meant_from_where_one_stands(tmp_path: Path) -> None:
    assert load_config(write(tmp_path), ["data.train=other.csv"]).data.train == "other.csv"


def test_plan_as_table_file_or_override(tmp_path: Path) -> None:
    table = load_config(write(tmp_path, SMALLEST + '[plan]\nprecision = "bf16"\nloader = { workers = 1 }\n')).plan
    assert isinstance(table, Plan)
    assert (table.precision, table.loader.workers) == ("bf16", 1)
    save_plan(Plan(micro_batching="packed"), tmp_path / "plan.json")
    from_file = load_config(write(tmp_path, 'plan = "plan.json"\n' + SMALLEST)).plan
    assert isinstance(from_file, Plan)
    assert from_file.micro_batching == "packed"
    nested = load_config(write(tmp_path), ["plan.loader.workers=3", "plan.loader.prefetch_windows=1"]).plan
    assert isinstance(nested, Plan)
    assert (nested.loader.workers, nested.loader.prefetch_windows) == (3, 1)
    laid_over = load_config(write(tmp_path, 'plan = "auto"\n' + SMALLEST), ["plan.precision=bf16"])
    assert isinstance(laid_over.plan, Plan)
    assert laid_over.plan.precision == "bf16"
    assert load_config(write(tmp_path, SMALLEST + '[plan]\nprecision = "bf16"\n'), ["plan=auto"]).plan == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SMALLEST + "[job]\nglobal_batsch = 8\n",
            "unknown setting in .job.: 'global_batsch'. Did you mean 'global_batch'",
        ),
        (SMALLEST + "[jobs]\nseed = 8\n", "unknown table: 'jobs'. Did you mean 'job'"),
        (SMALLEST + "[job]\nmax_length = 8\n", "'max_length' belongs in .data."),
        (SMALLEST + "[job]\nzebra = 8\n", "There are global_batch, epochs"),
        (SMALLEST + "[plan]\nprecission = 'bf16'\n", "Did you mean 'precision'"),
        (SMALLEST + "[plan]\nloader = { worker = 2 }\n", "setting in .plan.loader.: 'worker'. Did you mean 'workers'"),
        (SMALLEST + "[plan]\nprecision = 'bf8'\n", "plan.precision=.bf8.: .* It can be fp32, tf32, bf16, fp16"),
        ("seed = 3\n" + SMALLEST, "unknown setting: 'seed'. 'seed' belongs in .job."),
        ("job = 3\n" + SMALLEST, "must be a table"),
        ("plan = 3\n" + SMALLEST, 'must be "auto", the path of a plan file'),
        (SMALLEST + "[job]\nglobal_batch = '8'\n", "job.global_batch='8': expected `int`, got `str`"),
        (SMALLEST + "[job]\nglobal_batch = 0\n", "job.global_batch=0: must be a whole number of at least 1"),
        (SMALLEST + "[job]\nschedule = 'triangle'\n", "It can be linear, cosine, constant"),
        (SMALLEST + "[job]\nepochs = 1\noptimizer_steps = 3\n", "both set"),
        (SMALLEST + "[job]\nlearning_rate = nan\n", "must be a finite number above 0"),
        (SMALLEST + "[job]\nwarmup = 2.5\n", "a share below 1, or a whole number"),
        (SMALLEST + "[output]\nevaluate_every = 0\n", "at least 1"),
        (SMALLEST + "[output]\nevaluate_every = 'sometimes'\n", "a number of optimizer steps, epoch, end"),
        (SMALLEST.replace("[model]", "validation_fraction = 1.5\n[model]"), "above 0 and below 1"),
        (SMALLEST.replace("[model]", "validation = 'v.csv'\nvalidation_fraction = 0.1\n[model]"), "both set"),
        (SMALLEST.replace("[model]", "label = ['a']\n[model]"), "a list names two or more"),
        (SMALLEST.replace("[model]", "label = 'text'\n[model]"), "must be different columns"),
        (SMALLEST.replace("[model]", "label = ['a', 'b']\nproblem = 'regression'\n[model]"), "takes one label column"),
        (SMALLEST.replace("[model]", "max_length = 1\n[model]"), "at least 4 tokens"),
        ('[data]\ntrain = "x"\n', "sets none of them"),
        (SMALLEST + "name_or_path = 'x'\n", "sets name_or_path and from_scratch"),
        ('[model]\nfrom_scratch = "tiny"\n', "data.train is missing"),
        ("[data\n", "not valid TOML"),
    ],
)
def test_a_wrong_setting_says_what_and_how(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize("override", ["job.global_batch", "global_batch=3", "=3", "job.=3"])
def test_an_override_needs_section_setting_and_value(tmp_path: Path, override: str) -> None:
    with pytest.raises(SettingError, match="--set"):
        load_config(write(tmp_path), [override])


def test_a_wrong_override_is_blamed_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="^--set: job.global_batch='many'"):
        load_config(write(tmp_path), ["job.global_batch=many"])


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no such file"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(SettingError, match="is a folder"):
        load_config(tmp_path)


def test_the_config_in_the_documentation_is_a_config_and_states_the_defaults(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "train.md").read_text(encoding="utf-8")
    block = page.split("```toml\n")[1].split("```")[0]
    shown = load_config(write(tmp_path, block))
    usual = load_config(write(tmp_path))
    assert (replace(shown.job, epochs=None, learning_rate=None), shown.output) == (usual.job, usual.output)
    assert replace(shown.data, validation=None, test=None) == usual.data
    every_setting = {name.partition(".")[2] for name, _, _ in shown.described() if not name.startswith("plan.")}
    assert [name for name in sorted(every_setting) if f"{name} = " not in block] == []
