"""Files as they come: what is read exactly, and what a broken one says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import DataError, SettingError
from nearpeak.tasks.text_classification.reading import MISSING, ReadSettings, Table, read_table

COLUMNS = ("text", "label")


def read(path: Path, content: str | bytes, **settings: Any) -> Table:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(str(path), COLUMNS, ReadSettings(**settings))


@pytest.mark.parametrize(
    "content",
    [
        b"text,label\na,1\nb,2\n",
        b"\xef\xbb\xbftext,label\na,1\nb,2\n",
        b"text,label\r\na,1\r\nb,2\r\n",
        b"text,label\ra,1\rb,2",
        b"id,label,text\n7,1,a\n\n8,2,b\n\n",
        b'"text","label"\n"a","1"\n"b","2"',
    ],
    ids=["plain", "byte order mark", "Windows", "old Mac", "other columns and blank lines", "quoted, no last line end"],
)
def test_csv_in_its_dialects(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path / "x.csv", content).values == {"text": ["a", "b"], "label": ["1", "2"]}


def test_csv_keeps_quotes_delimiters_and_line_ends_inside_fields(tmp_path: Path) -> None:
    table = read(tmp_path / "x.csv", 'text,label\n"one, ""two""\r\nthree",x\nlast,y\n')
    assert table.values["text"] == ['one, "two"\r\nthree', "last"]
    assert table.lines == [2, 4]
    assert table.where(1) == f"{tmp_path / 'x.csv'}, row 2 (line 4)"


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.text('ab,"\r\n')),
        min_size=1,
    )
)
def test_csv_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([COLUMNS, *rows])
    table = read_table(str(path), COLUMNS, ReadSettings())
    assert list(zip(table.values["text"], table.values["label"], strict=True)) == rows


def test_tabs_and_other_delimiters(tmp_path: Path) -> None:
    assert read(tmp_path / "x.tsv", "text\tlabel\na,b\t1\n").values["text"] == ["a,b"]
    assert read(tmp_path / "x.csv", "text;label\na,b;1\n", delimiter=";").values["text"] == ["a,b"]


def test_other_encodings(tmp_path: Path) -> None:
    assert read(tmp_path / "x.csv", "text,label\ncafé,1\n".encode("cp1252"), encoding="cp1252").values["text"] == [
        "café"
    ]
    assert read(tmp_path / "x.csv", "text,label\ncafé,1\n".encode("utf-16"), encoding="utf-16").values["text"] == [
        "café"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,1\nb,2,3\n", r"line 3 \(row 2\) has 3 fields, the header has 2"),
        ("text,label\na,1\nb\n", r"line 3 \(row 2\) has 1 fields"),
        ('text,label\na,1\n"b,2\nc,3\n', "record that begins on line 3 and breaks on line 4 is not valid CSV"),
        ('text,label\na,1\n"b"c,2\n', "line 3 is not valid CSV.*each quote inside it doubled"),
        ("text,class\na,1\n", "no column 'label'.*columns are 'text', 'class'"),
        ("text,labels\na,1\n", "Did you mean 'labels'"),
        ("text;label\na;1\n", "set data.delimiter = ';'"),
        ("text,label,text\na,1,b\n", "'text' stands there 2 times"),
        ("", "is empty"),
        ("text,label\n", "holds no rows"),
        (b"text,label\nok,1\ncaf\xe9,2\n", "line 3: the byte 0xe9 is not utf-8.*data.encoding"),
        ("text,label\na,1\n".encode("utf-16"), 'data.encoding = "utf-16"'),
    ],
)
def test_broken_csv_names_the_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "x.csv", content)


def test_an_unknown_encoding_is_a_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no such encoding"):
        read(tmp_path / "x.csv", "text,label\na,1\n", encoding="utf-9")


def test_a_field_may_be_longer_than_the_csv_modules_default(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    assert len(read(tmp_path / "x.csv", f"text,label\n{'a' * 200_000},1\n").values["text"][0]) == 200_000
    assert csv.field_size_limit() == before


def test_json_lines_with_line_separators_and_blank_lines(tmp_path: Path) -> None:
    table = read(tmp_path / "x.jsonl", '{"text": "a\u2028b", "label": 1}\r\n\n{"text": "c", "label": [2]}\n')
    assert table.values == {"text": ["a\u2028b", "c"], "label": [1, [2]]}
    assert table.lines == [1, 3]


def test_json_that_is_one_array(tmp_path: Path) -> None:
    table = read(tmp_path / "x.json", '[{"text": "a", "label": 1},\n {"text": "b", "label": 2}]')
    assert table.values["label"] == [1, 2]
    assert table.where(1) == f"{tmp_path / 'x.json'}, row 2"


def test_a_key_that_one_row_lacks_is_missing_there(tmp_path: Path) -> None:
    assert read(tmp_path / "x.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n').values["label"] == [1, MISSING]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a", "label": 1}\n{"text": "b", "label": }\n', "line 2, character 24 is not valid JSON"),
        ('{"text": "a", "label": 1}\n["b", 2]\n', "line 2 holds a list, not an object"),
        ('{"text": "a", "class": 1}\n', "no column 'label'.*'text', 'class'"),
        ('[{"text": "a"}, 3]', "row 2 is a int, not an object"),
        ('[{"text": "a"},\n]', "line 2, column 1 is not valid JSON"),
        ("", "holds no rows"),
    ],
)
def test_broken_json_names_the_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "x.jsonl", content)


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", None], "label": [0.5, 2.0], "more": [1, 2]}), path)
    table = read_table(str(path), COLUMNS, ReadSettings())
    assert table.values == {"text": ["a", None], "label": [0.5, 2.0]}
    assert table.where(1) == f"{path}, row 2"
    with pytest.raises(DataError, match="no column 'Text'. Did you mean 'text'"):
        read_table(str(path), ("Text",), ReadSettings())


def test_broken_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read(tmp_path / "x.parquet", b"PAR1 and then nothing of the kind")


def test_datasets_folders(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, 1]}, features=features)
    data.select([2, 0]).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=data, validation=data).save_to_disk(str(tmp_path / "dict"))
    one = read_table(str(tmp_path / "one"), COLUMNS, ReadSettings())
    assert (one.values, one.class_names) == ({"text": ["c", "a"], "label": [1, 1]}, {"label": ("no", "yes")})
    assert len(read_table(str(tmp_path / "dict"), COLUMNS, ReadSettings(), split="validation")) == 3
    with pytest.raises(SettingError, match="has the splits train, validation, but no 'test'"):
        read_table(str(tmp_path / "dict"), COLUMNS, ReadSettings(), split="test")


def test_files_that_are_not_there_or_not_known(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n")
    with pytest.raises(SettingError, match="no such file or folder. Did you mean .*train.csv"):
        read_table(str(tmp_path / "trian.csv"), COLUMNS, ReadSettings())
    (tmp_path / "x.xlsx").write_text("")
    with pytest.raises(SettingError, match="the ending '.xlsx' says no format"):
        read_table(str(tmp_path / "x.xlsx"), COLUMNS, ReadSettings())
    with pytest.raises(SettingError, match="not one that datasets.save_to_disk wrote"):
        read_table(str(tmp_path), COLUMNS, ReadSettings())
    (tmp_path / "x.txt").write_text(json.dumps({"text": "a", "label": 1}))
    assert len(read_table(str(tmp_path / "x.txt"), COLUMNS, ReadSettings(format="jsonl"))) == 1
