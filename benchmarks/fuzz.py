"""Damaged traces: 10,000 of all formats, cut, flipped, reordered, with wrong types and huge numbers, packed or not.

    python benchmarks/fuzz.py [--quick] [--count N] [--seed N] [--json FILE]

Each goes through all that `nearpeak diagnose` does with a path. Nothing but nearpeak's own errors may come out; the
slowest must be quick and memory must not grow. A crash is kept as a file, and the seed makes the same damage again.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "trace"))
from _table import Target, finish, options, print_table
from fuzzing import fuzz

COUNT, QUICK_COUNT = 10_000, 300
MOST_SECONDS = 5.0
MOST_GROWTH_MB = 200.0


def main() -> None:
    """Damage, read, judge."""
    parser = options(__doc__ or "")
    parser.add_argument("--count", type=int, help="how many damaged traces")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other damage")
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    from nearpeak.cli._sources import diagnose_paths

    folder = Path(tempfile.mkdtemp(prefix="nearpeak-fuzz-"))
    count = arguments.count or (QUICK_COUNT if arguments.quick else COUNT)
    outcome = fuzz(folder, count, arguments.seed, lambda path: diagnose_paths([path]))
    formats = sorted({*outcome.read, *outcome.refused})
    rows = [[each, str(outcome.read[each]), str(outcome.refused[each])] for each in formats]
    print_table(f"{outcome.total:,} damaged traces, seed {arguments.seed}", ["format", "read", "refused"], rows)
    for crash in outcome.crashes:
        print(crash)
    grown_mb = outcome.grown_bytes / 1e6
    targets = [
        Target("errors that are not nearpeak's own", len(outcome.crashes), 0, at_most=True),
        Target(f"seconds for the slowest ({outcome.slowest})", outcome.slowest_s, MOST_SECONDS, at_most=True),
        Target("MB by which peak memory grew", grown_mb, MOST_GROWTH_MB, at_most=True),
    ]
    figures = {"seed": arguments.seed, "read": dict(outcome.read), "refused": dict(outcome.refused)}
    finish(targets, {**figures, "crashes": outcome.crashes}, arguments.json)


if __name__ == "__main__":
    main()
