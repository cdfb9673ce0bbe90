"""The documentation: its site builds without a warning, its examples run, its references are those of the program."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer.main
from page_blocks import ROOT, blocks_in

import transnormer as tn
from transnormer.cli.app import app
from transnormer.config.load import check_overrides
from transnormer.experiments.experiment import bare

PAGES = sorted((ROOT / "docs").glob("*.md"))
PUBLIC = sorted({name for name in tn.__all__ if name != "ops"} | {f"ops.{name}" for name in tn.ops.__all__})
WITHOUT_TENSORS = {"Sampling", "TransNormerConfig", "list_mixers", "list_presets", "preset"}


class Links(HTMLParser):
    """Where a page leads, and the places in it that can be led to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append(unquote(value))
            if value and name in ("id", "name"):
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (built.returncode, re.findall("(?:WARNING|ERROR).*", built.stderr)) == (0, []), built.stderr
    return folder


def test_links_of_the_site_lead_somewhere(site):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > len(PAGES)
    for page, links in pages.items():
        for target in links.targets:
            place, _, anchor = target.partition("#")
            if re.match(r"(https?:|data:|mailto:)", target):
                continue
            file = (page.parent / place.partition("?")[0]).resolve() if place else page
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{page.relative_to(site)}: {target}"
            if anchor and file in pages:
                assert anchor in pages[file].anchors, f"{page.relative_to(site)}: {target}"


def test_the_reference_shows_signatures_and_examples(site):
    """Of the functions, not of the folders that have their names; >>> is no quotation."""
    page = (site / "api.html").read_text(encoding="utf-8")
    entries = re.split(r'<h3 id="([^"]+)" class="doc', page)[1:]
    shown = dict(zip(entries[::2], entries[1::2], strict=True))
    assert len(shown) == len(PUBLIC)
    for name, entry in shown.items():
        assert "doc-signature" in entry, name
        assert re.search(r"<pre>[^\n]*&gt;&gt;&gt;", entry), name
    assert "<blockquote>" not in page


def test_examples_are_on_the_site_as_they_are(site):
    """Code has brackets that look like links of a page."""
    examples = [file for file in (ROOT / "examples").iterdir() if file.is_file()]
    assert {example.suffix for example in examples} == {".py", ".ipynb"}
    for example in examples:
        assert (site / "examples" / example.name).read_bytes() == example.read_bytes()


def test_nothing_of_the_site_is_loaded_from_elsewhere(site):
    loaded = re.compile(r"""<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)""")
    for page in site.rglob("*.html"):
        outside = [link for link in loaded.findall(page.read_text(encoding="utf-8")) if "canonical" not in link]
        assert outside == [], page.relative_to(site)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.stem in ("tutorial", "concepts", "coming-from", "hugging-face", "examples")],
    ids=str,
)
def test_blocks_of_a_page_run(page, run_blocks):
    blocks = blocks_in(page.read_text(encoding="utf-8"))
    assert blocks
    run_blocks(blocks)


def commands_in(page: Path) -> list[str]:
    """Commands of ours in the blocks of a page, without what a shell would take away."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("transnormer ")]


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{page.stem}-{at}") for page in PAGES for at, line in enumerate(commands_in(page))]
)
def test_commands_of_pages_can_be_typed(line):
    """Verbs, options and keys exist; what needs a public data set is run elsewhere, on files like it."""
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)
    while verbs := getattr(command, "commands", None):
        del words[0]
        assert words[0] in verbs, f"no verb '{words[0]}' in: {line}"
        command = verbs[words[0]]
    context = command.make_context(words[0], words[1:])
    check_overrides(map(bare, context.params.get("overrides") or []))


def test_the_reference_of_commands_is_generated(tmp_path):
    command = [sys.executable, "-m", "typer", "transnormer.cli.app", "utils", "docs", "--name", "transnormer"]
    subprocess.run([*command, "--output", str(tmp_path / "cli.md")], cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "cli.md").read_text() == (ROOT / "docs" / "cli.md").read_text(), "run `make readme`"


def public(name: str) -> object:
    owner: object = tn
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner


def test_the_reference_of_python_has_every_public_name():
    named = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = [getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in named]
    assert {id(each) for each in found} == {id(public(name)) for name in PUBLIC}


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - WITHOUT_TENSORS))
def test_what_takes_tensors_says_of_which_shape(name):
    told, *_ = (public(name).__doc__ or "").partition(">>>")
    assert re.search(r"\[(\.\.\.|[A-Z]), ", told), "no shape such as [B, T]"


@pytest.mark.parametrize("name", ["DiagAttention", "NormAttention"])
def test_the_two_attentions_say_what_they_are_and_what_their_options_mean(name):
    documented = public(name)
    first, *_ = (documented.__doc__ or "").splitlines()
    assert re.match(rf"{name}: .*[φQ].* \(paper, section 4\.[12]\)\.$", first)
    told = dict(re.findall(r"`(\w+)` \(default `?(.+?)`?[,)]", documented.__doc__ or ""))
    options = {key: each.default for key, each in inspect.signature(documented).parameters.items()}
    assert {key: ast.literal_eval(default) for key, default in told.items()} == {
        key: default for key, default in options.items() if default is not inspect.Parameter.empty
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_that_runs(name):
    documented = public(name)
    (test, *_) = doctest.DocTestFinder(recurse=False).find(documented, name, globs={"tn": tn}) or [None]
    assert test is not None, "no docstring"
    assert test.examples, "no example"
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test)
    assert failed == 0
