"""Elements of HTML. Text is escaped where it enters; only what `tag` returned passes as markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Child", "Html", "join", "tag", "trusted"]


class Html(str):
    """Markup that is safe as it stands."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
VOID = {"br", "hr", "meta", "rect", "path", "line", "circle", "link"}
# What a browser would take for the end of the text, or not show at all.
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n"} | {127: None}


def tag(_name: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """One element. `class_` and `for_` lose their mark, other `_` become `-`; None and False leave an attribute out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    opening = _name + "".join(_attribute(name, value) for name, value in attributes.items())
    if _name in VOID:
        return Html(f"<{opening}>" if _name in {"br", "hr", "meta", "link"} else f"<{opening}/>")
    return Html(f"<{opening}>{join(children)}</{_name}>")


def join(children: Iterable[Child]) -> Html:
    """Several elements or texts, one behind the other."""
    return Html("".join(map(_text, children)))


def trusted(markup: str) -> Html:
    """Markup of our own that is already whole: the style sheet, the script."""
    return Html(markup)


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return escape(str(child).translate(_CONTROL), quote=False)
    return join(child)


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{escape(str(value).translate(_CONTROL))}"'
