"""The site in a real browser: it loads without a complaint, fits any width, sorts, tells, and is accessible."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import HOW_TO_INSTALL, Browser, find_browser, open_browser
from run_case import write_run

from transnormer.experiments.demo import COLUMNS
from transnormer.report.figures import write_figure
from transnormer.report.page import Page, Picture, Section, Table, write_page
from transnormer.report.run_record import read_runs
from transnormer.report.site import write_site

pytestmark = pytest.mark.skipif(find_browser() is None, reason=HOW_TO_INSTALL)

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("AXE_CORE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
A4_LANDSCAPE = 1030  # pixels of CSS inside its margins
FIRST_TABLE = "document.querySelector('table')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the repository's own records, with two runs of different data."""
    folder = tmp_path_factory.mktemp("site")
    runs = [write_run(folder / name, "t2-tiny", data={"corpus": name}) for name in ("one", "two")]
    write_site(ROOT / "results", folder / "site", read_runs(runs))
    return folder / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def pages(site: Path) -> list[Path]:
    return sorted(site.glob("*.html"))


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (400, "dark"), (1280, "light")])
def test_every_page_fits_and_nothing_complains(site: Path, browser: Browser, width: int, scheme: str) -> None:
    before = len(browser.complaints)
    for page in pages(site):
        browser.open(page, width, scheme=scheme)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, page.name
        commands = "[...document.querySelectorAll('pre')].filter((each) => each.scrollWidth > each.clientWidth).length"
        assert browser.evaluate(commands) == 0, f"{page.name}: no key scrolls them"
    assert browser.complaints[before:] == []


def test_a_chart_that_is_wider_than_the_screen_says_so(site: Path, browser: Browser) -> None:
    cue = "getComputedStyle(document.querySelector('figure .scroll'), '::before').content"
    found = []
    for width in (400, 1280):
        browser.open(site / "speed.html", width)
        found.append("scroll" in browser.evaluate(cue))
    assert found == [True, False]


def test_the_table_of_the_demo_fits_and_its_maps_wrap(browser: Browser, tmp_path: Path) -> None:
    rows = [["linear_elu-tiny", "0.008", "826,496", "3.172", "0.686", "0.67", "65,536 KiB", "65,536 KiB"]]
    maps = [Picture(image="data:,", small=True)] * 3
    write_page(Page("Demo", "", [Section("Tables", table=Table(COLUMNS, rows), pictures=maps)]), tmp_path / "page.html")
    browser.open(tmp_path / "page.html", 1280)
    hidden = "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector('table').parentNode)"
    assert browser.evaluate(hidden) == 0
    tops = "new Set([...document.querySelectorAll('figure')].map((each) => each.offsetTop)).size"
    assert browser.evaluate(tops) == 1
    browser.open(tmp_path / "page.html", 400)
    assert browser.evaluate(tops) == 3


def test_every_page_fits_on_paper_and_is_light_there(site: Path, browser: Browser) -> None:
    for page in pages(site):
        browser.open(page, A4_LANDSCAPE, scheme="dark", media="print")
        assert browser.evaluate("document.documentElement.scrollWidth") <= A4_LANDSCAPE, page.name
        assert background(browser) > 128


def background(browser: Browser) -> int:
    """Its red, of 255."""
    colour: str = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(colour.removeprefix("rgb(").split(",")[0])


def test_the_dark_is_dark(site: Path, browser: Browser) -> None:
    found = []
    for scheme in ("light", "dark"):
        browser.open(site / "index.html", 1280, scheme=scheme)
        found.append(background(browser) > 128)
    assert found == [True, False]


def test_every_link_leads_somewhere(site: Path, browser: Browser) -> None:
    """Each link of each page, as the browser resolves it: to a file of the site, and to a place on it."""
    gather = "[...document.querySelectorAll('a[href], img[src]')].map((each) => each.href ?? each.src)"
    links = set()
    for page in pages(site):
        browser.open(page, 1280)
        links |= set(browser.evaluate(gather))
    assert len(links) > len(pages(site))
    for link in sorted(links):
        address, _, place = link.partition("#")
        target = Path(address.removeprefix("file://"))
        assert target.is_file(), link
        assert site in target.parents, link
        if place:
            browser.open(target, 1280)
            assert browser.evaluate(f"document.getElementById({json.dumps(place)}) !== null"), link


def column(browser: Browser, at: int) -> list[str]:
    return browser.evaluate(f"[...{FIRST_TABLE}.tBodies[0].rows].map((row) => row.cells[{at}].textContent.trim())")


def numbers(texts: list[str]) -> list[float]:
    return [float(text.split()[0].rstrip("†‡°").replace(",", "")) for text in texts if text != "–"]


def test_a_table_sorts_by_click_and_by_key(site: Path, browser: Browser) -> None:
    browser.open(site / "lra-tuned.html", 1280)
    before = column(browser, 1)
    browser.mouse("table thead th:nth-child(2) button", click=True)
    ascending = column(browser, 1)
    assert ascending != before
    assert numbers(ascending) == sorted(numbers(before))
    assert ascending[-1] == "–"
    assert browser.evaluate(f"{FIRST_TABLE}.tHead.rows[0].cells[1].getAttribute('aria-sort')") == "ascending"
    browser.press("Enter")  # the button has the focus: the other direction, and what is missing stays last
    assert numbers(column(browser, 1)) == sorted(numbers(before), reverse=True)
    assert column(browser, 1)[-1] == "–"
    browser.press("Tab")
    browser.press("Enter")
    assert numbers(column(browser, 2)) == sorted(numbers(column(browser, 2)))
    sorted_by = f"[...{FIRST_TABLE}.tHead.rows[0].cells].map((head) => head.getAttribute('aria-sort'))"
    assert browser.evaluate(sorted_by)[:3] == [None, None, "ascending"]
    browser.mouse("table thead th:first-child button", click=True)  # words
    assert column(browser, 0) == sorted(column(browser, 0))


def test_a_column_with_a_model_that_diverged_sorts_by_number(browser: Browser, tmp_path: Path) -> None:
    texts = ["inf‡", "797.08", "–", "4.98 ± 0.02", "nan", "1,204.10", "inf"]
    write_page(
        Page("Sorted", "", [Section("Table", table=Table(["ppl"], [[each] for each in texts]))]), tmp_path / "p.html"
    )
    browser.open(tmp_path / "p.html", 1280)
    browser.mouse("table thead th button", click=True)
    assert column(browser, 0) == ["4.98 ± 0.02", "797.08", "1,204.10", "inf‡", "inf", "–", "nan"]


def test_a_point_says_what_it_is(site: Path, browser: Browser) -> None:
    browser.open(site / "speed.html", 1280)
    assert browser.evaluate("document.getElementById('tip').hidden")
    browser.mouse("svg.chart g.points circle")
    assert not browser.evaluate("document.getElementById('tip').hidden")
    assert " at 1,024" in browser.evaluate("document.getElementById('tip').textContent")


def test_a_circle_of_a_figure_says_what_it_is(browser: Browser, tmp_path: Path) -> None:
    write_figure("figure1", copy_results(tmp_path))
    write_site(tmp_path / "results", tmp_path / "site")
    browser.open(tmp_path / "site" / "figures.html", 1280)
    browser.mouse("svg.drawing g.points")
    assert " steps/s, " in browser.evaluate("document.getElementById('tip').textContent")


def copy_results(folder: Path) -> Path:
    """The records behind Figure 1."""
    (folder / "results" / "bench").mkdir(parents=True)
    shutil.copy(ROOT / "results" / "bench" / "speed-paper.json", folder / "results" / "bench")
    return Path(shutil.copytree(ROOT / "results" / "lra-tuned", folder / "results" / "lra-tuned")).parent


@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core here; npm install --no-save axe-core, or AXE_CORE=FILE")
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_axe_finds_nothing_serious(site: Path, browser: Browser, width: int, scheme: str) -> None:
    for page in pages(site):
        browser.open(page, width, scheme=scheme)
        browser.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        found: list[dict[str, Any]] = browser.evaluate("axe.run().then((result) => result.violations)")
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"]][:3])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], page.name
