"""The rules of the house, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nearpeak

ROOT = Path(nearpeak.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# From the ground up; a room may import from itself and from every floor below its own.
FLOORS = (
    ("errors", "reason", "job", "plan", "recording", "finding", "forecast"),
    ("observe", "trace", "hardware"),
    ("diagnose", "predict"),
    ("train", "planner"),
    ("report", "launch", "integrations", "tasks", "testing"),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FACADE = "__init__"
"""`nearpeak/__init__.py` opens onto every room; inside, only the version is taken from it."""

MOST_LINES = {"file": 600, "class": 400, "function": 50}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of every import of our own, also those inside functions and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = absolute_names(node, path)
        else:
            continue
        for name in names:
            if name == "nearpeak" or name.startswith("nearpeak."):
                yield node.lineno, name.split(".")[1] if "." in name else FACADE


def absolute_names(node: ast.ImportFrom, path: Path) -> list[str]:
    """`from nearpeak import errors` means the room; `from . import x` is resolved."""
    base = node.module or ""
    if node.level:
        package = ("nearpeak", *path.relative_to(ROOT).parts[: -node.level])
        base = ".".join((*package, *([node.module] if node.module else [])))
    if base != "nearpeak":
        return [base]
    return [f"nearpeak.{alias.name}" if alias.name in FLOOR_OF else "nearpeak" for alias in node.names]


def upward_imports(path: Path) -> list[str]:
    room = room_of(path)
    problems = []
    for line, imported in imported_rooms(parse(path), path):
        if imported in (FACADE, room):
            continue
        if imported not in FLOOR_OF:
            problems.append(f"{path}:{line}: room {imported!r} has no floor; add it to FLOORS")
        elif FLOOR_OF[imported] > FLOOR_OF[room] or (FLOOR_OF[imported] == FLOOR_OF[room] > 0):
            problems.append(f"{path}:{line}: {room} must not import {imported}: imports point downward only")
    return problems


def test_imports_point_downward() -> None:
    problems = [problem for path in SOURCES if room_of(path) != FACADE for problem in upward_imports(path)]
    assert not problems, "\n".join(problems)


def test_only_the_version_is_taken_from_the_facade() -> None:
    problems = [
        f"{path}:{node.lineno}: import {alias.name} from its own module, not from the facade"
        for path in SOURCES
        if room_of(path) != FACADE
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and node.module == "nearpeak" and not node.level
        for alias in node.names
        if alias.name != "__version__" and alias.name not in FLOOR_OF
    ]
    assert not problems, "\n".join(problems)


def test_the_rule_catches_what_it_forbids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    offender = tmp_path / "hardware" / "gpu.py"
    offender.parent.mkdir()
    offender.write_text(
        "from nearpeak.errors import SettingError\n"  # down: fine
        "from nearpeak import __version__\n"
        "def f():\n    from nearpeak.train.run import Run\n"  # up
        "from ..trace import timeline\n"  # across
        "from . import host\n"  # at home
        "import nearpeak.attic\n"  # unknown
    )
    lines = [problem.split(":")[1] for problem in upward_imports(offender)]
    assert sorted(lines) == ["4", "5", "7"]


def test_public_names_are_all() -> None:
    assert len(set(nearpeak.__all__)) == len(nearpeak.__all__)
    assert set(dir(nearpeak)) == set(nearpeak.__all__)
    missing = [name for name in nearpeak.__all__ if not hasattr(nearpeak, name)]
    assert not missing
    with pytest.raises(AttributeError, match="no attribute 'attic'"):
        _ = nearpeak.attic  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_docstrings(path: Path) -> None:
    problems = list(size_problems(path)) + list(docstring_problems(path))
    assert not problems, "\n".join(problems)


def size_problems(path: Path) -> Iterator[str]:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MOST_LINES["file"]:
        yield f"{path}: {lines} lines; a file has at most {MOST_LINES['file']}"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MOST_LINES[kind]:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines; a {kind} has at most {MOST_LINES[kind]}"


def docstring_problems(path: Path) -> Iterator[str]:
    tree = parse(path)
    if tree.body and ast.get_docstring(tree) is None:
        yield f"{path}: the module says nothing about itself"
    for node in public_definitions(tree):
        if ast.get_docstring(node) is None and not is_declaration(node):
            yield f"{path}:{node.lineno}: {node.name} is public and has no docstring"


def public_definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes of the module, and what public classes define that a name cannot explain."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
                yield from (method for method in methods if not method.name.startswith("_") and not is_plain(method))


def is_plain(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A method or property of one or two statements: its name and type say what it does."""
    return len(method.body) <= 2


def is_declaration(node: ast.AST) -> bool:
    """A body of `...` alone: a protocol's member or an overload."""
    body = getattr(node, "body", [])
    return len(body) == 1 and isinstance(body[0], ast.Expr) and getattr(body[0].value, "value", None) is ...
