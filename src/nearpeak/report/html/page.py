"""The page around the parts: one file, no network, light or dark as the reader's system is."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nearpeak import __version__
from nearpeak.errors import SettingError, StorageError
from nearpeak.report.html.markup import Child, Html, tag, trusted

__all__ = ["Section", "page", "write_page"]

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with its heading; `anchor` leads there."""

    anchor: str
    title: str
    body: Child
    lead: str | None = None


def page(title: str, opening: Child, sections: Sequence[Section], *, footer: str | None = None) -> str:
    """A whole document. `opening` stands above the sections: verdict and key figures."""
    shown = [section for section in sections if section.body]
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in shown]
    made = f"Made by nearpeak {__version__}." + (f" {footer}" if footer else "")
    body = tag(
        "body",
        tag(
            "main",
            tag("header", opening, class_="opening"),
            tag("nav", links, aria_label="Sections") if len(links) > 2 else None,
            [_section(section) for section in shown],
        ),
        tag("footer", made),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", trusted(_asset("page.js"))),
    )
    return f"<!doctype html>\n{tag('html', _head(title), body, lang='en')}\n"


def write_page(path: Path, document: str, *, force: bool = False) -> None:
    """Write it; a file that is there is replaced only by force."""
    if path.exists() and not force:
        raise SettingError(f"{path}: the file exists; choose another or give --force.")
    try:
        path.write_text(document, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}.") from None


def _section(section: Section) -> Html:
    heading = tag("h2", section.title, id=f"{section.anchor}-title")
    lead = tag("p", section.lead, class_="lead") if section.lead else None
    return tag("section", heading, lead, section.body, id=section.anchor, aria_labelledby=f"{section.anchor}-title")


def _head(title: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", trusted(_asset("style.css"))),
    )


@cache
def _policy() -> str:
    """Nothing is fetched, and no script runs but ours: not even one that hid in a name of the user's."""
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


@cache
def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8").strip()
