"""The demo's data: docstrings and source of the running interpreter's own standard library, one label per module.

Files are read and parsed, never imported or executed. A *unit* is one function, method, class or module text; its
docstring and its source are separate snippets, and both fall on the same side of the split. The names of the modules
to be told apart are masked wherever they stand as a word, whatever the label, so that no snippet says its own answer.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from nearpeak.errors import DataError

__all__ = ["MASK", "Corpus", "Snippet", "read_corpus", "standard_library_path"]

MASK = "[MODULE]"
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}
)
# Packaged apart by some distributions, gone from later Pythons, or tables instead of text: with them, the classes
# would depend on who built the interpreter.
SKIPPED_MODULES = frozenset(
    {"test", "idlelib", "tkinter", "turtle", "turtledemo", "lib2to3", "distutils", "ensurepip", "encodings", "venv"}
)
LEAST_CHARACTERS = 60
"""Shorter snippets (`def close(self): …`) could come from anywhere."""
MOST_CHARACTERS = 4_000
"""Far more than 512 tokens: what is behind would be cut off anyway."""
MEDIAN_LINES, SPREAD_OF_LINES = 10.0, 0.9
"""Source is cut into pieces of a log-normal number of lines, drawn from the hash of the unit's name."""
HELD_OUT_OF_100 = 15

Kind = Literal["docstring", "source"]


@dataclass(frozen=True, slots=True)
class Snippet:
    """One text and the module that it comes from."""

    text: str
    label: int
    unit: str
    """File and qualified name of what it was taken from: ``json/decoder.py:JSONDecoder.decode``."""
    kind: Kind


@dataclass(frozen=True, slots=True)
class Corpus:
    """Snippets of the most populous modules, split by unit."""

    modules: tuple[str, ...]
    """The classes; a label is an index into them."""
    train: tuple[Snippet, ...]
    held_out: tuple[Snippet, ...]
    files: int
    """Python files read."""
    unreadable: tuple[str, ...]
    """Files that are not valid source for this interpreter; they are left out."""


@dataclass(frozen=True, slots=True)
class _Raw:
    module: str
    unit: str
    kind: Kind
    text: str


def standard_library_path() -> Path:
    """Where the running interpreter keeps the Python files of its standard library."""
    path = Path(sysconfig.get_path("stdlib"))
    if not (path / "ast.py").is_file():
        raise DataError(
            f"{path} holds no readable standard library (ast.py is missing): this interpreter carries it in another "
            "form, such as a zip archive. Run the demo with a usual Python installation."
        )
    return path


def read_corpus(
    root: Path | None = None,
    *,
    classes: int = 24,
    most_per_class: int = 400,
    progress: Callable[[str], None] = lambda message: None,
) -> Corpus:
    """Read, mask, split and balance; the same interpreter gives the same corpus."""
    root = root or standard_library_path()
    raw, files, unreadable = _read_all(root, progress)
    modules = _most_populous(raw, classes)
    masked = list(_without_duplicates(_mask(raw, modules)))
    train = [snippet for snippet in masked if not _is_held_out(snippet.unit)]
    held_out = [snippet for snippet in masked if _is_held_out(snippet.unit)]
    most_held_out = max(1, most_per_class * HELD_OUT_OF_100 // (100 - HELD_OUT_OF_100))
    return Corpus(
        modules=modules,
        train=_capped(train, most_per_class),
        held_out=_capped(held_out, most_held_out),
        files=files,
        unreadable=tuple(unreadable),
    )


def _read_all(root: Path, progress: Callable[[str], None]) -> tuple[list[_Raw], int, list[str]]:
    files = list(_python_files(root))
    if not files:
        raise DataError(f"{root} holds no Python files to learn from.")
    raw: list[_Raw] = []
    unreadable: list[str] = []
    public = {_top_level(name) for name, _ in files}
    for number, (name, path) in enumerate(files):
        if number % 100 == 0:
            progress(f"reading the standard library: {number} of {len(files)} files")
        module = _public_name(_top_level(name), public)
        try:
            raw.extend(_file_snippets(name, module, _source_of(path)))
        except (SyntaxError, ValueError, OSError):  # ValueError: null bytes or an undecodable file
            unreadable.append(name)
    return raw, len(files), unreadable


def _python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """(name relative to the library, path) of every file with text worth learning from, sorted by name."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        skipped = not SKIPPED_FOLDERS.isdisjoint(parts) or _top_level(parts[0]) in SKIPPED_MODULES
        is_module = len(parts) == 1 or (root / parts[0] / "__init__.py").is_file()  # a package, not a build folder
        if is_module and not skipped:
            yield "/".join(parts), path


def _top_level(name: str) -> str:
    return name.split("/", 1)[0].removesuffix(".py")


def _public_name(module: str, public: set[str]) -> str:
    """`_pydecimal` holds the text of `decimal`, `_strptime` that of nobody else."""
    for prefix in ("_py", "_"):
        if module.startswith(prefix) and module.removeprefix(prefix) in public:
            return module.removeprefix(prefix)
    return module


def _source_of(path: Path) -> str:
    import tokenize

    with tokenize.open(path) as file:  # honours the encoding that the file declares
        return file.read()


def _file_snippets(name: str, module: str, source: str) -> Iterator[_Raw]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old files are not the user's concern
        tree = ast.parse(source)
    lines = source.splitlines()
    docstring = ast.get_docstring(tree)
    if docstring:
        yield _Raw(module, f"{name}:", "docstring", docstring)
    for qualified, node in _units(tree, ""):
        unit = f"{name}:{qualified}"
        docstring = ast.get_docstring(node)
        if docstring:
            yield _Raw(module, unit, "docstring", docstring)
        for piece in _pieces(_own_source(node, lines), unit):
            yield _Raw(module, unit, "source", piece)


_Unit = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _units(parent: ast.AST, prefix: str) -> Iterator[tuple[str, _Unit]]:
    """Functions and classes, methods included; what is defined inside a function belongs to that function's source."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _units(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt | ast.ExceptHandler):  # `if`, `try` and the like around definitions
            yield from _units(node, prefix)


def _own_source(node: _Unit, lines: list[str]) -> str:
    """Source lines of a unit without its docstring; of a class, also without its methods and inner classes."""
    left_out: set[int] = set()
    if ast.get_docstring(node, clean=False) is not None:
        left_out |= _line_numbers(node.body[0])
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, _Unit):
                left_out |= _line_numbers(child)
    kept = [lines[number - 1] for number in sorted(_line_numbers(node) - left_out)]
    return textwrap.dedent("\n".join(line for line in kept if line.strip()))


def _pieces(source: str, unit: str) -> Iterator[str]:
    """Consecutive pieces of a unit's source, short and long as texts are."""
    lines = source.split("\n")
    share = (_hash(f"lines of {unit}") % 10_000 + 0.5) / 10_000
    count = max(3, round(MEDIAN_LINES * math.exp(SPREAD_OF_LINES * NormalDist().inv_cdf(share))))
    for first in range(0, len(lines), count):
        yield textwrap.dedent("\n".join(lines[first : first + count]))


def _line_numbers(node: ast.stmt) -> set[int]:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return set(range(first, (node.end_lineno or node.lineno) + 1))


def _most_populous(raw: list[_Raw], classes: int) -> tuple[str, ...]:
    """The public modules with most units, alphabetically."""
    units: dict[str, set[str]] = {}
    for item in raw:
        if not item.module.startswith("_"):
            units.setdefault(item.module, set()).add(item.unit)
    ranked = sorted(units, key=lambda module: (-len(units[module]), module))
    if len(ranked) < classes:
        raise DataError(f"This standard library has {len(ranked)} modules with text; {classes} classes were asked for.")
    return tuple(sorted(ranked[:classes]))


def _mask(raw: Iterable[_Raw], modules: tuple[str, ...]) -> Iterator[Snippet]:
    label_of = {module: label for label, module in enumerate(modules)}
    names = "|".join(sorted(map(re.escape, modules), key=len, reverse=True))
    pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{names})(?![A-Za-z0-9])", re.IGNORECASE)
    for item in raw:
        text = item.text.strip()
        if item.module in label_of and len(text) >= LEAST_CHARACTERS:
            text = pattern.sub(MASK, text[:MOST_CHARACTERS])
            yield Snippet(text, label_of[item.module], item.unit, item.kind)


def _without_duplicates(snippets: Iterable[Snippet]) -> Iterator[Snippet]:
    """Keep the first of snippets with the same words: a copy could stand on the other side of the split."""
    seen: set[str] = set()
    for snippet in snippets:
        words = " ".join(snippet.text.split())
        if words not in seen:
            seen.add(words)
            yield snippet


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _is_held_out(unit: str) -> bool:
    """Decided by the unit's name alone: its docstring and its source stay together, on any Python."""
    return _hash(unit) % 100 < HELD_OUT_OF_100


def _capped(snippets: Iterable[Snippet], most_per_class: int) -> tuple[Snippet, ...]:
    """At most so many of each class, picked by hash: a sample of the whole module, not of its first files."""
    kept: dict[int, int] = {}
    chosen: list[Snippet] = []
    for snippet in sorted(snippets, key=lambda item: (_hash(f"{item.unit} {item.kind} {item.text}"), item.unit)):
        if kept.get(snippet.label, 0) < most_per_class:
            kept[snippet.label] = kept.get(snippet.label, 0) + 1
            chosen.append(snippet)
    return tuple(chosen)
