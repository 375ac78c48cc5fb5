"""The page in a real browser: it draws, complains of nothing, fetches nothing, and can be read anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Browser, a_browser, find_browser
from samples import HOSTILE, diagnosis, record_run

from nearpeak.diagnose.recorded import diagnose_recording
from nearpeak.report.html.run_page import run_page

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason="no Chromium is installed (Debian: apt-get install chromium-headless-shell; .ci/tools does it)",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with a_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recording = record_run(folder, ranks=4, devices=4, slow_rank=1, hostile=HOSTILE)
    path = folder / "report.html"
    path.write_text(run_page(recording, diagnosis(facts=diagnose_recording(recording).facts)), encoding="utf-8")
    return path


def test_no_complaint_and_no_request_but_for_the_page_itself(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert browser.complaints == []
    assert browser.requests == [page.resolve().as_uri()]


def test_a_request_and_an_error_would_have_been_seen(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://localhost:9/x.png'><script>console.error('no'); undefined.x</script>")
    browser.open(bad)
    assert len(browser.requests) == 2
    assert len(browser.complaints) >= 2


def test_charts_are_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('.plot svg').length") >= 10
    boxes = "[...document.querySelectorAll('.plot, .lane, .track')].map(e => e.getBoundingClientRect())"
    assert browser.evaluate(f"{boxes}.every(b => b.width > 100 && b.height > 10)")
    drawn = (
        "[...document.querySelectorAll('.plot svg')].every(e => e.querySelector('.line, .area').getTotalLength() > 50)"
    )
    assert browser.evaluate(drawn)
    colours = "new Set([...document.querySelectorAll('.area')].map(e => getComputedStyle(e).fill)).size"
    assert browser.evaluate(colours) >= 4


def test_figures_are_read_off_with_keys_and_with_the_pointer(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("ArrowRight")
    first = browser.evaluate("document.getElementById('tip').innerText")
    browser.press("End")
    assert "rank 3" in first
    assert " ms" in first
    assert browser.evaluate("document.getElementById('tip').innerText") != first
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('tip').hidden")
    x, y = browser.evaluate(
        "(() => { const e = document.querySelector('.area').closest('.plot'); e.scrollIntoView({block: 'center'});"
        "const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.move(x, y)
    shown = browser.evaluate("document.getElementById('tip').innerText")
    assert "waiting for data" in shown
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_findings_without_scrolling_sideways(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, width=390, height=844, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    cards = "[...document.querySelectorAll('section > .findings .finding')]"
    assert browser.evaluate(f"{cards}.length") == 2
    texts = f"{cards}.flatMap(c => [...c.querySelectorAll('h3, p, li')])"
    boxes = f"{texts}.map(e => e.getBoundingClientRect())"
    assert browser.evaluate(f"{boxes}.every(b => b.left >= 0 && b.right <= 390 && b.width > 30)")
    sizes = f"{texts}.map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert min(browser.evaluate(sizes)) >= 13
    assert browser.complaints == []


def contrast(one: list[float], other: list[float]) -> float:
    """As the accessibility guidelines define it."""

    def luminance(colour: list[float]) -> float:
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_light_and_dark(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    read = "(e, what) => getComputedStyle(e)[what].match(/[0-9.]+/g).map(Number)"
    paper = browser.evaluate(f"({read})(document.body, 'backgroundColor')")
    assert (sum(paper) < 200) == dark
    for chosen in ("h1", ".lead", ".gain", ".finding p", ".source", ".note", ".label", "nav a", "td", "dt"):
        ink = browser.evaluate(f"({read})(document.querySelector({chosen!r}), 'color')")
        assert contrast(ink, paper) >= 4.5, chosen


def test_all_has_a_name_for_those_who_cannot_see_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    nameless = "[...document.querySelectorAll('[role=img], [role=region], [role=group], section, nav')]"
    nameless += ".filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).length"
    assert browser.evaluate(nameless) == 0
    levels = browser.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.evaluate("document.documentElement.lang") == "en"


def test_paper_shows_all_in_ink(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate("[...document.querySelectorAll('details')].every(e => e.open)")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.call("Page.printToPDF")["data"]) > 20_000
