"""The README tells the truth: everything under Usage runs, in order, as written; its table comes from results/."""

from __future__ import annotations

import re
from pathlib import Path

from page_blocks import blocks_in

from transnormer.report.kernel_tables import with_kernels
from transnormer.report.pages import generated

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_usage(run_blocks):
    usage = re.search(r"^## Usage$(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    assert usage is not None
    blocks = blocks_in(usage.group(1))
    assert [language for language, _ in blocks] == ["python", "bash", "python"]
    run_blocks(blocks)


def test_the_two_commands_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_pages_are_generated_from_the_records():
    pages = generated(ROOT)
    names = {page.relative_to(ROOT).as_posix() for page in pages}
    assert {"README.md", "docs/results.md", "docs/performance.md", "results/lra/README.md"} <= names
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: run `make readme`"


def test_the_readme_has_at_most_three_tables_of_results():
    results = re.search(r"<!-- results:begin -->(.*)<!-- results:end -->", README, re.DOTALL)
    assert results is not None
    assert len(re.findall(r"^\|---", results.group(1), re.MULTILINE)) == 3
    assert "](docs/results.md)" in results.group(1)


def test_every_page_is_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page not in reached and page.suffix == ".md" and page.is_file():
            reached.add(page)
            ahead += [page.parent / link for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))]
    pages = {*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")}
    assert pages - reached == set()


def test_tables_are_made_again_where_a_page_has_lost_them():
    """What stands between markers is replaced, not kept."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    without = re.sub(r"(:begin -->).*?(<!-- [\w ]+:end -->)", r"\1\2", page, flags=re.DOTALL)
    assert with_kernels(without, ROOT / "results") == page


def test_links_lead_somewhere():
    pages = {page: page.read_text(encoding="utf-8") for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]}
    for page, text in (pages | generated(ROOT)).items():
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page}: {link}"
