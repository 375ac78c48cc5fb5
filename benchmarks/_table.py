"""What every benchmark shares: its options, its table, and one line per target."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that must be reached."""

    name: str
    figure: float
    bound: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound

    def __str__(self) -> str:
        sign, verdict = "≤" if self.at_most else "≥", "holds" if self.holds else "falls short"
        return f"{self.name}: {self.figure:.3g} (target {sign} {self.bound:g}): {verdict}"


def options(description: str) -> argparse.ArgumentParser:
    """--json FILE and --quick, which every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: shows that it runs, proves nothing")
    return parser


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Left-aligned first column, the others to the right."""
    cells = [columns, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for position, row in enumerate(cells):
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))
        if position == 0:
            print("  ".join("-" * w for w in widths))


def finish(targets: list[Target], figures: dict[str, Any], path: Path | None) -> None:
    """One line per target, the JSON file, and the exit code."""
    print()
    for target in targets:
        print(target)
    if path is not None:
        content = {"figures": figures, "targets": [{**asdict(t), "holds": t.holds} for t in targets]}
        path.write_text(json.dumps(content, indent=2) + "\n")
    sys.exit(0 if all(target.holds for target in targets) else 1)
