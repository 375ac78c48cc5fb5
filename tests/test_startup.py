"""`nearpeak --help` is there at once: measured in CPU seconds, so that a busy machine does not decide."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from nearpeak.cli.main import VERBS

BUDGET_MS = 60
REPEATS = 7
HEAVY = ("torch", "numpy", "textual", "rich", "transformers", "datasets", "pandas")
BARE = "pass"
HELP = "from nearpeak.cli.main import main; main(['--help'])"
LOADED = f"import sys; print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules))"


def cpu_ms(code: str) -> float:
    """CPU time of one interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def test_help_takes_no_more_than_its_budget_over_the_bare_interpreter() -> None:
    cpu_ms(HELP)  # compiles what is not compiled yet
    pairs = [(cpu_ms(BARE), cpu_ms(HELP)) for _ in range(REPEATS)]
    bare_ms, help_ms = (min(column) for column in zip(*pairs, strict=True))
    assert help_ms - bare_ms <= BUDGET_MS, f"bare {bare_ms:.0f} ms, --help {help_ms:.0f} ms"


def test_help_loads_nothing_heavy() -> None:
    output = subprocess.run([sys.executable, "-c", f"{HELP}; {LOADED}"], check=True, capture_output=True, text=True)
    assert output.stdout.splitlines()[-1].split() == ["loaded:"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_loads_no_framework(verb: str) -> None:
    code = f"from nearpeak.cli.main import main; assert main([{verb!r}, '--help']) == 0; {LOADED}"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = output.stdout.splitlines()[-1].split()[1:]
    assert not {"torch", "transformers", "datasets", "pandas"}.intersection(loaded)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import nearpeak; {LOADED}"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert output.stdout.split() == ["loaded:"]
