"""Read the columns a job needs from CSV, JSON lines, Parquet or a `datasets` folder, and know where each row stands.

Nothing is repaired in silence: a line that cannot be read is a `DataError` with its file, row and line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nearpeak.errors import DataError, SettingError

__all__ = ["MISSING", "Table", "read_table"]

SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
LONGEST_FIELD = 2**31 - 1
SAMPLE_ROWS = 1_000


class _Missing:
    """A row that lacks a column altogether (JSON lines)."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Table:
    """The wanted columns of one file."""

    source: str
    values: dict[str, list[Any]]
    lines: list[int] | None = None
    """File line of each row's beginning, where the format has lines."""
    typed: bool = True
    """Whether the format tells numbers from text (CSV does not)."""
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes of a column, where the file holds them."""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def where(self, row: int) -> str:
        """`train.csv, row 3 (line 4)`; `row` counts from 0, what is shown from 1."""
        line = f" (line {self.lines[row]:,})" if self.lines else ""
        return f"{self.source}, row {row + 1:,}{line}"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How to read; the fields are those of [data]."""

    format: str = "auto"
    delimiter: str | None = None
    encoding: str = "utf-8"


def read_table(path: str, columns: Sequence[str], settings: ReadSettings, *, split: str = "train") -> Table:
    """Read `columns` of one file or folder."""
    if not Path(path).exists():
        raise SettingError(f"data.{split}={path!r}: no such file or folder.{_near_file(Path(path))}")
    kind = _format_of(Path(path), settings, split)
    reader = {"csv": _read_csv, "jsonl": _read_json, "parquet": _read_parquet, "datasets": _read_datasets}[kind]
    try:
        table = reader(Path(path), columns, settings, split)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if not len(table):
        raise DataError(f"{path}: holds no rows. data.{split} needs at least one.")
    return table


def _near_file(path: Path) -> str:
    names = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f" Did you mean {str(path.parent / near[0])!r}?" if near else ""


def _format_of(path: Path, settings: ReadSettings, split: str) -> str:
    if settings.format != "auto":
        return settings.format
    if path.is_dir():
        return _format_of_folder(path, split)
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise SettingError(
            f"data.{split}={str(path)!r}: the ending {path.suffix!r} says no format. Known are {', '.join(SUFFIXES)} "
            "and "
            'folders of datasets.save_to_disk; or set data.format to "csv", "jsonl" or "parquet".'
        )
    return kind


def _format_of_folder(path: Path, split: str) -> str:
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return "datasets"
    raise SettingError(
        f"data.{split}={str(path)!r}: a folder, but not one that datasets.save_to_disk wrote (no dataset_info.json "
        "and state.json, no dataset_dict.json). Name a file, or a list of files."
    )


def require_columns(source: str, present: Sequence[str], wanted: Sequence[str], hint: str = "") -> None:
    """Every wanted column is there, once."""
    for column in wanted:
        if present.count(column) > 1:
            raise DataError(
                f"{source}: the column {column!r} stands there {present.count(column)} times; rename all but one."
            )
        if column not in present:
            near = get_close_matches(column, present, n=1, cutoff=0.6)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(
                f"{source}: has no column {column!r}.{guess} Its columns are "
                f"{', '.join(map(repr, present)) or 'none'}. "
                f"Set data.text, data.text_pair and data.label to columns of the file.{hint}"
            )


# CSV


def _read_csv(path: Path, columns: Sequence[str], settings: ReadSettings, split: str) -> Table:
    delimiter = settings.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    records = _csv_records(path, _decoded(path, settings.encoding), delimiter)
    header = next(records, (0, []))[1]
    if not header:
        raise DataError(f"{path}: is empty: the first line must name the columns.")
    require_columns(str(path), header, columns, _header_hint(header, delimiter))
    places = [(column, header.index(column)) for column in columns]
    values: dict[str, list[Any]] = {column: [] for column in columns}
    lines: list[int] = []
    for line, record in records:
        if len(record) != len(header):
            raise DataError(_width_message(path, line, len(lines) + 1, record, header))
        lines.append(line)
        for column, place in places:
            values[column].append(record[place])
    return Table(str(path), values, lines, typed=False)


def _csv_records(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of each record; blank lines are none."""
    before = csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    try:
        while True:
            begins = reader.line_num + 1
            record = next(reader, None)
            if record is None:
                return
            if record:
                yield begins, record
    except csv.Error as error:
        raise DataError(_broken_message(path, begins, reader.line_num, str(error))) from None
    finally:
        csv.field_size_limit(before)


def _broken_message(path: Path, begins: int, ends: int, error: str) -> str:
    span = (
        f"line {begins:,}"
        if begins >= ends
        else f"the record that begins on line {begins:,} and breaks on line {ends:,}"
    )
    return (
        f"{path}: {span} is not valid CSV: {error}. A field that holds a delimiter, a line end or a quote stands in "
        "quotes, "
        'with each quote inside it doubled: "she said ""yes""". Mostly a closing quote is missing.'
    )


def _width_message(path: Path, line: int, row: int, record: list[str], header: list[str]) -> str:
    return (
        f"{path}: line {line:,} (row {row:,}) has {len(record)} fields, the header has {len(header)} "
        f"({', '.join(map(repr, header))}). Put a text that holds the delimiter in quotes, or set data.delimiter."
    )


def _header_hint(header: list[str], delimiter: str) -> str:
    others = [mark for mark in (";", "\t", "|", ",") if mark != delimiter and len(header) == 1 and mark in header[0]]
    if others:
        return f" The fields look separated by {others[0]!r}: set data.delimiter = {others[0]!r}."
    return " The first line of a CSV file must name the columns."


def _decoded(path: Path, encoding: str) -> str:
    """The whole text; a byte that the encoding does not have is named with its line."""
    raw = path.read_bytes()
    mark = BYTE_ORDER_MARKS.get(raw[:2])
    if mark and encoding == "utf-8":
        raise DataError(f'{path}: begins like a UTF-16 file. Set data.encoding = "utf-16", or save it as UTF-8.')
    try:
        return raw.decode("utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: line {line:,}: the byte 0x{raw[error.start]:02x} is not {encoding}. Save the file as UTF-8, or "
            "set "
            'data.encoding to what it was written in, often "cp1252" or "latin-1".'
        ) from None
    except LookupError:
        raise SettingError(
            f"data.encoding={encoding!r}: no such encoding; try utf-8, cp1252, latin-1 or utf-16."
        ) from None


# JSON


def _read_json(path: Path, columns: Sequence[str], settings: ReadSettings, split: str) -> Table:
    text = _decoded(path, settings.encoding)
    rows = _json_array(path, text) if text.lstrip()[:1] == "[" else _json_lines(path, text)
    present = list(dict.fromkeys(key for _, row in rows[:SAMPLE_ROWS] for key in row))
    absent = [column for column in columns if all(column not in row for _, row in rows)]
    if rows and absent:
        require_columns(str(path), [key for key in present if key not in absent], absent)
    values = {column: [row.get(column, MISSING) for _, row in rows] for column in columns}
    lines = [line for line, _ in rows] if rows and rows[0][0] else None
    return Table(str(path), values, lines)


def _json_lines(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    """(line, object) of each line; only a line feed ends a line, since JSON text may hold U+2028 bare."""
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    return [(number, _json_object(path, line, number)) for number, line in lines]


def _json_object(path: Path, line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        shown = line if len(line) <= 60 else f"{line[:57]}…"
        raise DataError(
            f"{path}: line {number:,}, character {error.pos + 1:,} is not valid JSON: {error.msg}. The line is "
            f"{shown!r}. "
            "JSON lines hold one whole object on each line."
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f'{path}: line {number:,} holds a {type(value).__name__}, not an object {{"column": value, …}}.'
        )
    return value


def _json_array(path: Path, text: str) -> list[tuple[int, dict[str, Any]]]:
    """A whole file that is one array of objects; its rows have no lines."""
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: line {error.lineno:,}, column {error.colno:,} is not valid JSON: {error.msg}."
        ) from None
    for row, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise DataError(f'{path}: row {row:,} is a {type(item).__name__}, not an object {{"column": value, …}}.')
    return [(0, item) for item in items]


# Parquet and datasets


def _read_parquet(path: Path, columns: Sequence[str], settings: ReadSettings, split: str) -> Table:
    import pyarrow
    from pyarrow import parquet

    try:
        require_columns(str(path), parquet.read_schema(path).names, columns)
        table = parquet.read_table(path, columns=list(columns))
    except pyarrow.ArrowInvalid as error:
        raise DataError(
            f"{path}: not a readable Parquet file: {_first_line(error)}. Write it again, or fetch it again."
        ) from None
    return Table(str(path), {column: table.column(column).to_pylist() for column in columns})


def _read_datasets(path: Path, columns: Sequence[str], settings: ReadSettings, split: str) -> Table:
    import datasets

    data = datasets.load_from_disk(str(path))
    if isinstance(data, datasets.DatasetDict):
        data, path = _split_of(data, path, split), path / split
    require_columns(str(path), data.column_names, columns)
    names = {column: _class_names(data.features[column]) for column in columns}
    # Through Arrow: indexing a Dataset by column decodes row by row.
    table: Any = data.with_format("arrow").select_columns(list(columns))[:]
    values = {column: table.column(column).to_pylist() for column in columns}
    return Table(str(path), values, class_names={column: known for column, known in names.items() if known})


def _split_of(data: Any, path: Path, split: str) -> Any:
    if split in data:
        return data[split]
    raise SettingError(
        f"data.{split}={str(path)!r}: has the splits {', '.join(data)}, but no {split!r}. Name one of them as a "
        "folder, "
        f"for example {str(path / next(iter(data)))!r}."
    )


def _class_names(feature: Any) -> tuple[str, ...]:
    """Names of a ClassLabel feature, or of a list of them."""
    inner = getattr(feature, "feature", feature)
    return tuple(getattr(inner, "names", None) or ())


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
