"""The demo's data: the same on every run, split by function, balanced, masked; read and never executed."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from nearpeak.errors import DataError
from nearpeak.tasks.standard_library.snippets import (
    LEAST_CHARACTERS,
    MASK,
    Corpus,
    Snippet,
    read_corpus,
    standard_library_path,
)

CAP = 150


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return read_corpus(classes=20, most_per_class=CAP)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def function(name: str, body: str, doc: str = "") -> str:
    docstring = f'    """{doc}"""\n' if doc else ""
    return f"def {name}(value):\n{docstring}    {body}\n"


def functions(name: str, count: int) -> str:
    return "".join(function(f"{name}_{n}", f"{LONG}  # {name} {n}") for n in range(count))


LONG = "return compute_something_long_enough_to_be_worth_keeping(value, other=None)"


def all_snippets(corpus: Corpus) -> tuple[Snippet, ...]:
    return corpus.train + corpus.held_out


def test_same_interpreter_same_corpus(corpus: Corpus) -> None:
    assert read_corpus(classes=20, most_per_class=CAP) == corpus


def test_no_function_is_on_both_sides(corpus: Corpus) -> None:
    units = {snippet.unit for snippet in corpus.train}
    assert units.isdisjoint(snippet.unit for snippet in corpus.held_out)
    kinds = Counter(snippet.unit for snippet in corpus.train if snippet.kind == "docstring")
    both = [snippet for snippet in corpus.train if snippet.kind == "source" and snippet.unit in kinds]
    assert len(both) > 50, "the library has many functions with docstring and source: the split must have met them"


def test_no_text_is_on_both_sides(corpus: Corpus) -> None:
    def words(snippet: Snippet) -> str:
        return " ".join(snippet.text.split())

    texts = [words(snippet) for snippet in all_snippets(corpus)]
    assert len(texts) == len(set(texts))


def test_balance(corpus: Corpus) -> None:
    train = Counter(snippet.label for snippet in corpus.train)
    held_out = Counter(snippet.label for snippet in corpus.held_out)
    assert set(train) == set(held_out) == set(range(20))
    assert max(train.values()) <= CAP
    assert min(train.values()) >= CAP / 3
    assert 0.05 <= len(corpus.held_out) / len(all_snippets(corpus)) <= 0.25


def test_no_snippet_says_its_answer(corpus: Corpus) -> None:
    names = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(corpus.modules)})(?![A-Za-z0-9])", re.IGNORECASE)
    telling = [snippet for snippet in all_snippets(corpus) if names.search(snippet.text)]
    assert not telling
    assert sum(MASK in snippet.text for snippet in all_snippets(corpus)) > 100


def test_lengths_vary_as_texts_do(corpus: Corpus) -> None:
    lengths = sorted(len(re.findall(r"\w+|[^\w\s]", snippet.text)) for snippet in all_snippets(corpus))
    median, mean = lengths[len(lengths) // 2], sum(lengths) / len(lengths)
    assert 1.2 * median < mean < 2.5 * median, "a long tail, as log-normal lengths have"
    assert 35 <= mean <= 100
    assert lengths[-1] > 300


def test_no_tests_and_no_foreign_packages(corpus: Corpus) -> None:
    assert all(
        snippet.unit.split("/")[0] not in ("site-packages", "test", "idlelib") for snippet in all_snippets(corpus)
    )
    assert all("/test/" not in snippet.unit and "/tests/" not in snippet.unit for snippet in all_snippets(corpus))
    assert {"asyncio", "email", "logging"} <= set(corpus.modules)


def test_files_are_never_executed(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    for module in ("alpha", "beta"):
        write(tmp_path, f"{module}.py", f"open({str(trap)!r}, 'w')\n" + functions(module[0], 1))
    corpus = read_corpus(tmp_path, classes=2)
    assert len(all_snippets(corpus)) == 2
    assert not trap.exists()


def test_docstring_and_source_are_apart(tmp_path: Path) -> None:
    doc = "Tell what this function is good for, in more than sixty characters of plain text."
    write(tmp_path, "alpha.py", function("work", LONG, doc))
    write(
        tmp_path,
        "beta.py",
        f'class Box:\n    """{doc} Boxes too."""\n    limit = 3  # {"a comment " * 6}\n' + _method(),
    )
    by_unit = {(s.unit, s.kind): s.text for s in all_snippets(read_corpus(tmp_path, classes=2))}
    assert by_unit["alpha.py:work", "docstring"] == doc
    assert by_unit["alpha.py:work", "source"] == f"def work(value):\n    {LONG}"
    box = by_unit["beta.py:Box", "source"]
    assert "limit = 3" in box
    assert "def method" not in box
    assert by_unit["beta.py:Box.method", "source"].startswith("def method")


def _method() -> str:
    return f"    def method(self, value):\n        {LONG}\n"


def test_private_twins_count_for_their_public_module(tmp_path: Path) -> None:
    write(tmp_path, "alpha.py", function("front", LONG))
    write(tmp_path, "_pyalpha.py", function("inside", LONG))
    write(tmp_path, "beta.py", function("other", LONG))
    write(tmp_path, "_secret.py", "".join(function(f"secret_{n}", LONG) for n in range(9)))
    corpus = read_corpus(tmp_path, classes=2)
    assert corpus.modules == ("alpha", "beta")
    labels = {snippet.unit: snippet.label for snippet in all_snippets(corpus)}
    assert labels == {"alpha.py:front": 0, "_pyalpha.py:inside": 0, "beta.py:other": 1}


def test_unreadable_files_are_named_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, "alpha.py", function("work", LONG))
    write(tmp_path, "beta.py", function("toil", LONG))
    write(tmp_path, "broken.py", "def broken(:\n")
    (tmp_path / "latin.py").write_bytes(b"name = '\xe9'\n")
    corpus = read_corpus(tmp_path, classes=2)
    assert corpus.unreadable == ("broken.py", "latin.py")
    assert corpus.files == 4


def test_long_sources_are_cut_into_pieces_of_one_side(tmp_path: Path) -> None:
    body = "\n".join(f"    total_{n} = compute_step_number_{n}(value, previous={n})" for n in range(400))
    write(tmp_path, "alpha.py", f"def long_one(value):\n{body}\n")
    write(tmp_path, "beta.py", function("other", LONG))
    corpus = read_corpus(tmp_path, classes=2)
    pieces = [snippet for snippet in all_snippets(corpus) if snippet.unit == "alpha.py:long_one"]
    assert len(pieces) > 1
    assert all(piece in corpus.train for piece in pieces) or all(piece in corpus.held_out for piece in pieces)
    assert sum(piece.text.count("compute_step_number") for piece in pieces) >= 390


def test_caps_take_a_sample_of_the_whole_module(tmp_path: Path) -> None:
    for letter in "abcdef":
        write(tmp_path, f"alpha/{letter}.py", functions(letter, 60))
    write(tmp_path, "alpha/__init__.py", "")
    write(tmp_path, "beta.py", functions("other", 60))
    corpus = read_corpus(tmp_path, classes=2, most_per_class=40)
    train = Counter(snippet.label for snippet in corpus.train)
    assert train == {0: 40, 1: 40}
    assert len({snippet.unit[:7] for snippet in corpus.train if snippet.label == 0}) == 6


def test_short_snippets_are_left_out(corpus: Corpus) -> None:
    pattern = re.compile(re.escape(MASK))
    # Masking may shorten a text by at most the length of the longest name.
    longest = max(map(len, corpus.modules))
    assert all(len(pattern.sub("x" * longest, s.text)) >= LEAST_CHARACTERS - longest for s in all_snippets(corpus))


def test_too_few_modules_is_a_clear_error(tmp_path: Path) -> None:
    write(tmp_path, "alpha.py", function("work", LONG))
    with pytest.raises(DataError, match=r"has 1 modules with text; 24 classes"):
        read_corpus(tmp_path)


def test_no_files_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no Python files"):
        read_corpus(tmp_path)


def test_zipped_library_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "python311.zip"))
    with pytest.raises(DataError, match="holds no readable standard library"):
        standard_library_path()


def test_order_of_files_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("alpha", "beta", "gamma"):
        write(
            tmp_path, f"{module}.py", "".join(function(f"{module}_{n}", f"{LONG}  # {module} {n}") for n in range(20))
        )
    expected = read_corpus(tmp_path, classes=3)
    listed = Path.rglob

    def shuffled(self: Path, pattern: str) -> list[Path]:
        found = list(listed(self, pattern))
        random.Random(1).shuffle(found)
        return found

    monkeypatch.setattr(Path, "rglob", shuffled)
    assert read_corpus(tmp_path, classes=3) == expected
