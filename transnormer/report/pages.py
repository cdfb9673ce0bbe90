"""Every page, and part of a page, that is generated from results/: README, docs, and the tables of the paper.

python -m transnormer.report.pages [FOLDER OF A CHECKOUT]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from transnormer.errors import TransNormerError
from transnormer.experiments import data_record
from transnormer.experiments.paper import ablations, demo_rates, experiment, glue, list_tables, lm, lra, mlm
from transnormer.experiments.record import read_records
from transnormer.files import write_text
from transnormer.report import bench_tables, promises
from transnormer.report.bench_tables import Section
from transnormer.report.context_curves import contexts
from transnormer.report.kernel_tables import with_kernels
from transnormer.report.markdown import replaced

# A reader of the README needs three; every other table is on the page of results.
IN_README: tuple[Section, ...] = (lm.headline, bench_tables.speed_over_length, lra.summary)
IN_RESULTS: tuple[Section, ...] = (
    lm.summary,
    contexts,
    mlm.summary,
    glue.summary,
    ablations.summary,
    bench_tables.training,
    bench_tables.large_models,
    bench_tables.training_runs,
    bench_tables.vocabularies,
    bench_tables.decoding,
    bench_tables.kernels,
    bench_tables.packing,
    bench_tables.growth,
    bench_tables.demo,
    demo_rates.summary,
)
_RESULTS = """# Results

Generated from the records in `results/` by `make readme`; every number was written there by the command beside it.
The paper's speed table, the Long-Range Arena and the main figures of the language models: [README](../README.md).
"""


def generated(root: Path) -> dict[Path, str]:
    """The text that each page should have, by the file it is in."""
    results, readme, performance = root / "results", root / "README.md", root / "docs" / "performance.md"
    arena = root / "docs" / "lra.md"
    more = "Every other table: [docs/results.md](docs/results.md).\n"
    pages = {
        readme: replaced(_read(readme), "results", "\n".join([*_made(IN_README, results), more])),
        arena: replaced(_read(arena), "data", data_record.table(results) or ""),
        performance: with_kernels(_read(performance), results),
        root / "docs" / "results.md": "\n".join([_RESULTS, *_made(IN_RESULTS, results), _elsewhere(results)]),
    }
    promised = root / "docs" / "promises.md"
    pages[promised] = _with_promises(_read(promised), results)
    for name in list_tables():
        table = experiment(name)
        for folder in {results / table.folder(setup) for setup in table.setups}:
            if records := read_records(folder):
                pages[table.page_file(folder)] = table.page(records)
    return pages


def _with_promises(text: str, results: Path) -> str:
    text = replaced(text, "promises", promises.table(results))
    text = replaced(text, "details", promises.details(results))
    return replaced(text, "others", promises.others())


def _made(sections: Sequence[Section], results: Path) -> list[str]:
    return [text for section in sections if (text := section(results))]


def _elsewhere(results: Path) -> str:
    """What lies beside the records, with all methods and lengths."""
    files = [*sorted((results / "bench").glob("*.md")), *sorted(results.glob("*/README.md"))]
    links = ", ".join(f"[{_name(file)}](../{file.relative_to(results.parent).as_posix()})" for file in files)
    return f"As the commands printed them: {links}.\n"


def _name(file: Path) -> str:
    return file.parent.name if file.stem == "README" else file.stem


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Write the pages of a checkout, by default of the folder it is called in."""
    try:
        for page, text in generated(Path(*arguments)).items():
            write_text(page, text)
    except TransNormerError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
