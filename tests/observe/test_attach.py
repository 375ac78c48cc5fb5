"""Attaching by environment: every Python process of a command, however it is started, and never to its harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import nearpeak
from nearpeak.errors import SettingError
from nearpeak.observe.attach import INJECTED, attached_environment, read_records, settings, write_record

SOURCE = str(Path(nearpeak.__file__).parent.parent)
# A module to wait for that costs nothing, and the function to call after it.
WATCHED = "colorsys"
HELPER = """
    from nearpeak.observe.attach import settings, write_record
    def note(module):
        ready = hasattr(module, "rgb_to_hsv")
        write_record("note", {"module": module.__name__, "ready": ready, **settings()["options"]})
    def fail(module):
        raise ValueError("our own bug")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment that notes the import of the watched module in every process."""
    (tmp_path / "helper.py").write_text(textwrap.dedent(HELPER))
    return attach(tmp_path, "helper:note")


def attach(folder: Path, function: str, **variables: str) -> dict[str, str]:
    (folder / "records").mkdir(exist_ok=True)
    base = {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(folder)]), **variables}
    return attached_environment({WATCHED: function}, records=folder / "records", options={"answer": 42}, base=base)


def run(environment: dict[str, str], *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, cwd=folder)


def records(folder: Path) -> list[dict[str, Any]]:
    return read_records(folder / "records")


def test_calls_the_function_after_the_import(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, sys.executable, "-c", f"import {WATCHED}")
    assert (done.returncode, done.stderr) == (0, "")
    (record,) = records(tmp_path)
    assert record["ready"]
    assert (record["module"], record["answer"], record["kind"], record["rank"]) == (WATCHED, 42, "note", None)


def test_waits_for_the_import_not_for_the_question(environment: dict[str, str], tmp_path: Path) -> None:
    ask = f"import importlib.util as u; assert u.find_spec('{WATCHED}') and u.find_spec('{WATCHED}')"
    assert run(environment, sys.executable, "-c", ask).returncode == 0
    assert records(tmp_path) == []
    assert run(environment, sys.executable, "-c", f"{ask}; import {WATCHED}; import {WATCHED}").returncode == 0
    (record,) = records(tmp_path)
    assert record["ready"]


def test_costs_nothing_where_the_module_is_not_imported(environment: dict[str, str], tmp_path: Path) -> None:
    code = "import sys; print([m for m in sys.modules if m.partition('.')[0] in ('nearpeak', 'torch', 'numpy')])"
    assert run(environment, sys.executable, "-c", code).stdout == "[]\n"
    assert records(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["sh", "-c", f"cd / && sh -c '{sys.executable} -c \"import {WATCHED}\"'"],
        [sys.executable, "-m", WATCHED],
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', 'import {WATCHED}'])"],
        [sys.executable, "spawned.py"],
    ],
    ids=["nested shells", "python -m", "subprocess", "multiprocessing spawn"],
)
def test_reaches_every_python_process(environment: dict[str, str], tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "spawned.py").write_text(
        textwrap.dedent(f"""
        import importlib, multiprocessing
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=importlib.import_module, args=("{WATCHED}",))
            process.start(); process.join()
        """)
    )
    if "-m" in arguments:
        # Run as a program it is not imported; its importer must be.
        (tmp_path / "importer.py").write_text(f"import {WATCHED}")
        arguments = [*arguments[:2], "importer"]
    done = run(environment, *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path)) == 1


def test_runs_the_sitecustomize_that_it_shadows(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(textwrap.dedent(HELPER))
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = __name__")
    environment = attach(tmp_path, "helper:note")
    done = run(
        environment, sys.executable, "-c", f"import {WATCHED}, sitecustomize; print(theirs, sitecustomize.__file__)"
    )
    assert done.stdout.split() == ["sitecustomize", str(tmp_path / "sitecustomize.py")]
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize("function", ["helper:fail", "helper:missing", "no_such_module:note"])
def test_a_fault_of_ours_warns_once_and_harms_nobody(tmp_path: Path, function: str) -> None:
    (tmp_path / "helper.py").write_text(textwrap.dedent(HELPER))
    environment = attach(tmp_path, function)
    done = run(
        environment, sys.executable, "-c", f"import {WATCHED}; import {WATCHED}; print({WATCHED}.rgb_to_hsv(1, 1, 1))"
    )
    assert (done.returncode, done.stdout) == (0, "(0.0, 0.0, 1)\n")
    assert done.stderr.count("nearpeak:") == 1


def test_settings_that_cannot_be_read_harm_nobody(environment: dict[str, str]) -> None:
    done = run({**environment, "NEARPEAK_ATTACH": "{"}, sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "NEARPEAK_ATTACH cannot be read" in done.stderr


def test_an_import_that_fails_fails_as_before(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / f"{WATCHED}.py").write_text("raise ImportError('theirs')")
    done = run(environment, sys.executable, "-c", f"import {WATCHED}", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ImportError: theirs")
    assert records(tmp_path) == []


def test_ranks_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper.py").write_text(textwrap.dedent(HELPER))
    for rank in ("10", "2"):
        assert (
            run(attach(tmp_path, "helper:note", RANK=rank), sys.executable, "-c", f"import {WATCHED}").returncode == 0
        )
    assert [record["rank"] for record in records(tmp_path)] == [2, 10]


def test_a_record_is_replaced_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARPEAK_ATTACH", json.dumps({"hooks": {}, "options": {}, "records": str(tmp_path)}))
    for count in range(3):
        write_record("count", {"count": count})
    assert [record["count"] for record in read_records(tmp_path)] == [2]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"]


def test_a_process_that_is_not_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEARPEAK_ATTACH", raising=False)
    assert settings() is None
    write_record("anything", {})


def test_the_environment_grows_only_once(tmp_path: Path) -> None:
    once = attached_environment({}, records=tmp_path, base={"PYTHONPATH": "/theirs"})
    twice = attached_environment({}, records=tmp_path, base=once)
    assert once["PYTHONPATH"] == twice["PYTHONPATH"] == os.pathsep.join([str(INJECTED), "/theirs"])


def test_a_hook_must_name_a_function(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="module:function"):
        attached_environment({"torch": "nearpeak.no_function"}, records=tmp_path)


def test_a_command_whose_environment_has_no_nearpeak(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hook = "nearpeak.observe.system:read_disk_bytes"  # of no such process: any function that takes something
    environment = attached_environment({WATCHED: hook}, records=tmp_path, base=base)
    code = f"import {WATCHED}, sys; print(sys.modules['nearpeak'].__file__, any('{SOURCE}' == p for p in sys.path))"
    interpreter = shutil.which("python3", path=f"{sys.base_prefix}/bin")
    if interpreter is None or sys.prefix == sys.base_prefix:
        pytest.skip("needs an interpreter without nearpeak: the one that made this virtual environment")
    done = run(environment, interpreter, "-c", code, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [nearpeak.__file__, "False"]
