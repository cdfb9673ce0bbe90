"""A static site of all results: claims, a page a table, figures, speed, runs. It opens from disk and loads nothing."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transnormer.errors import ConfigError, DataError
from transnormer.experiments import data_record
from transnormer.experiments.paper.contents import CONTENTS
from transnormer.experiments.table import NONE
from transnormer.files import disk_errors, write_json, write_text
from transnormer.report.claims import FIGURE_PAGE, SPEED_PAGE, paper_claims
from transnormer.report.context_curves import contexts, draw_contexts
from transnormer.report.evidence import Kind
from transnormer.report.figure_section import FIGURE_FILES, figure_section
from transnormer.report.markdown import read_record
from transnormer.report.page import Cell, Claim, Page, Picture, Section, Table, render
from transnormer.report.run_page import run_page
from transnormer.report.run_record import RunRecord
from transnormer.report.speed_page import speed_page, speed_records
from transnormer.report.table_view import TableView, data_labels, table_page, table_views

# Lists what was written, so that a later call knows the folder as a site, and which files in it are its own.
_MANIFEST = "site.json"
_MADE_BY = "transnormer report site"
_HINT = "choose another --out"
# By verdict and whether something was compared, in words of one claim and of several.
_COUNTED = {
    (Kind.HOLDS, True): ("holds", "hold"),
    (Kind.IN_PART, True): ("holds in part", "hold in part"),
    (Kind.FAILS, True): ("does not hold", "do not hold"),
    (Kind.UNTESTED, True): ("undecided", "undecided"),
    (Kind.UNTESTED, False): ("not tested", "not tested"),
}
_RULES = (
    "Test accuracy of rules that do not read sequences in order, and examples that splits have in common. "
    "`transnormer data show lra/TASK --stats` computes them; docs/lra.md says what each is."
)
_UNTESTED = "No record says anything about these. Their pages have the command that makes one."


def write_site(results: Path, out: Path, runs: Sequence[RunRecord] = ()) -> int:
    """Write all pages, and the records and figures they link to, into a folder; how many pages there are."""
    before = _files_of(out)
    views = list(table_views(results))
    copies = {**_record_files(results, views), **_figure_files(results)}
    pages = site_pages(results, views, runs)
    with disk_errors(out, hint=_HINT):
        out.mkdir(exist_ok=True)
        write_json(out / _MANIFEST, {"made_by": _MADE_BY, "files": sorted({*before, *pages, *copies})}, _HINT)
        for name, source in copies.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, out / name)
        for stale in before - pages.keys() - copies.keys():
            (out / stale).unlink(missing_ok=True)
    for name, page in pages.items():
        write_text(out / name, render(page), _HINT)
    write_json(out / _MANIFEST, {"made_by": _MADE_BY, "files": sorted({*pages, *copies})}, _HINT)
    return len(pages)


def site_pages(results: Path, views: Sequence[TableView], runs: Sequence[RunRecord] = ()) -> dict[str, Page]:
    """Every page by its file, each with links to the main ones."""
    speeds, figures = speed_page(results), _figure_page(results)
    if not (speeds or any(view.records for view in views)):
        raise ConfigError(
            f"{results} has no records" if results.is_dir() else f"{results} is not a folder",
            "give --results a folder that `transnormer reproduce` or `transnormer bench` wrote",
        )
    claims = paper_claims(views, speed_records(results), read_record(results / "analysis" / "dilution.json"))
    main = {
        "index.html": _overview(claims, views),
        **({SPEED_PAGE: speeds} if speeds else {}),
        FIGURE_PAGE: figures,
        **({"runs.html": run_page(runs)} if runs else {}),
    }
    tables = {view.file: _table_page(view, results) for view in views}
    others = [Cell("Overview", "index.html"), Cell("Tables", "index.html#tables")]
    others += [Cell(page.title, file) for file, page in main.items() if file != "index.html"]
    facts = {"made by": f"{_MADE_BY}, from the records in {results.name}/ alone"}
    return {
        file: replace(
            page, facts={**page.facts, **facts}, others=[replace(other, strong=other.href == file) for other in others]
        )
        for file, page in {**main, **tables}.items()
    }


def _table_page(view: TableView, results: Path) -> Page:
    """A table, and beside the accuracies of the arena what is reached without reading in order."""
    page, rules = table_page(view, _links(view)), data_record.table(results)
    if view.experiment.name != "lra" or rules is None:
        return page
    means = Section("What a number means", text=f"{_RULES}\n\n{rules}")
    return replace(page, sections=[page.sections[0], means, *page.sections[1:]])


def _overview(claims: Sequence[Claim], views: Sequence[TableView]) -> Page:
    counts = Counter((claim.verdict, bool(claim.reasons)) for claim in claims)
    summary = ", ".join(f"{counts[key]} {words[counts[key] > 1]}" for key, words in _COUNTED.items() if counts[key])
    tested = [claim for claim in claims if claim.reasons]
    untested = [claim for claim in claims if not claim.reasons]
    rows: list[list[str | Cell]] = [
        [
            Cell(view.title, href=view.file),
            str(len(view.records)),
            data_labels(view.records),
            ", ".join(sorted({str(record.seed) for record in view.records})) or NONE,
            view.command,
        ]
        for view in views
    ]
    return Page(
        "TransNormer, reproduced",
        "What *The Devil in Linear Transformer* (Qin et al., EMNLP 2022) claims, and what our own runs say. Every "
        "verdict is computed from records. A claim holds without reservation only on the paper's data, against all of "
        "its methods, and beyond the spread of seeds: two numbers are apart if they differ by more than their "
        "standard deviations together. A number of one seed has the largest deviation of those beside it.",
        [
            Section("Claims", text=f"Of {len(claims)} claims: {summary}.", claims=tested),
            *([Section("Not tested yet", text=_UNTESTED, claims=untested)] if untested else []),
            Section("Tables", table=Table(["table", "records", "data", "seeds", "command"], rows)),
        ],
    )


def _figure_page(results: Path) -> Page:
    """The figures that lie in results/figures, the paper's that do not, and curves over the context, drawn anew."""
    files = _figure_files(results).values()
    names = dict.fromkeys(file.stem for file in files if file.suffix in (".svg", ".png"))
    sections = [figure_section(results / "figures", name) for name in names]
    entries = {name: entry for name, entry in CONTENTS.items() if name.startswith("figure") and name not in names}
    if missing := [f"- {name}, {entry.about}: `{entry.command}`" for name, entry in entries.items()]:
        sections.append(Section("Not drawn yet", text="\n".join(missing)))
    if text := contexts(results):
        curves = sorted((results / "contexts").glob("*.json"))
        drawn = [Picture(svg=draw_contexts([file]), caption=file.stem) for file in curves]
        sections.append(Section("Context", text=text, pictures=drawn))
    return Page("Figures", "Drawn from records and checkpoints.", sections)


def _links(view: TableView) -> dict[str, str]:
    """The address of each record's file on the site."""
    return {record.name: f"records/{view.folder}/{record.name}.json" for record in view.records}


def _record_files(results: Path, views: Sequence[TableView]) -> dict[str, Path]:
    return {link: results / view.folder / f"{name}.json" for view in views for name, link in _links(view).items()}


def _figure_files(results: Path) -> Mapping[str, Path]:
    files = sorted((results / "figures").glob("*.*"))
    return {f"figures/{file.name}": file for file in files if file.suffix in FIGURE_FILES}


def _files_of(out: Path) -> set[str]:
    """What an earlier call wrote there; any other folder that is not empty is an error, and stays as it is."""
    if not out.parent.is_dir():
        raise ConfigError(f"--out: there is no folder {out.parent}", "make it first, or give another --out")
    if not out.exists():
        return set()
    if not out.is_dir():
        raise ConfigError(f"--out: {out} is a file", "give a folder")
    manifest = out / _MANIFEST
    if not manifest.is_file():
        if any(out.iterdir()):
            raise ConfigError(f"--out: {out} has files that are no site of ours", "give a new folder, or an empty one")
        return set()
    try:
        tree = json.loads(manifest.read_text(encoding="utf-8"))
        if tree["made_by"] != _MADE_BY:
            raise KeyError("made_by")
        return {name for name in tree["files"] if not Path(name).is_absolute() and ".." not in Path(name).parts}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{manifest} is damaged, or another program's", "remove the folder, or give another --out"
        ) from error
