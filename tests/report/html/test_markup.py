"""Whatever text is given, it stays text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from samples import HOSTILE

from nearpeak.report.html.charts import data_block
from nearpeak.report.html.markup import join, tag


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text(st.characters(exclude_categories=("C",))))
def test_text_and_attributes_come_back_as_they_were(text: str) -> None:
    seen = read(tag("p", text, title=text))
    assert (seen.tags, seen.text) == ([("p", [("title", text)])], text)


def test_markup_of_ours_is_nested_and_that_of_others_is_not() -> None:
    seen = read(tag("div", tag("b", "x"), None, ["y", join(["z"])], HOSTILE, class_="a", hidden=True, id=None))
    assert [name for name, _ in seen.tags] == ["div", "b"]
    assert seen.text == "xyz" + HOSTILE
    assert seen.tags[0][1] == [("class", "a"), ("hidden", None)]


def test_control_characters_are_left_out() -> None:
    assert tag("p", "a\x00b\x1b[31m\nc") == "<p>ab[31m\nc</p>"


def test_a_string_cannot_end_the_block_of_figures() -> None:
    block = data_block({"name": "</script><script>alert(1)</script>"})
    assert [name for name, _ in read(block).tags] == ["script"]
    assert block.count("</script>") == 1
