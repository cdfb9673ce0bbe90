"""The site without a browser: pages, links, numbers from records alone, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from record_case import PUBLISHED, STAND_IN, record_tree
from run_case import write_run

from transnormer.errors import ConfigError, DataError
from transnormer.experiments.paper import experiment, list_tables
from transnormer.experiments.paper.contents import CONTENTS
from transnormer.report.run_record import read_runs
from transnormer.report.site import write_site

ROOT = Path(__file__).resolve().parents[2]


class Links(HTMLParser):
    """Every address and every place of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := found.get(name))]
        if place := found.get("id"):
            self.places.add(place)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three records, a benchmark and a figure."""
    folder = tmp_path / "results"
    (folder / "lra").mkdir(parents=True)
    for task, method, accuracy in (("text", "t2", 0.7213), ("text", "vanilla", 0.6), ("listops", "t2", 0.41)):
        write_record(folder, record_tree(task, method, accuracy=accuracy))
    (folder / "figures").mkdir()
    (folder / "figures" / "figure1.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (folder / "figures" / "figure1.csv").write_text("method,score\nt2,12.5\n")
    facts = {
        "paper": "T2 is highest.",
        "protocol": "at 1 token",
        "sources": ["lra/*.json"],
        "notes": ["without a score: flash"],
    }
    (folder / "figures" / "figure1.json").write_text(json.dumps(facts))
    (folder / "bench").mkdir()
    shutil.copy(ROOT / "results" / "bench" / "speed-paper.json", folder / "bench")
    return folder


def write_record(results: Path, tree: dict) -> None:
    (results / "lra" / f"{tree['name']}.json").write_text(json.dumps(tree))


def text(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_every_link_leads_to_a_file_and_a_place_of_the_site(results: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_site(results, site, read_runs([write_run(tmp_path / "run", "t2-tiny")]))
    pages = {page.name: Links(page) for page in site.glob("*.html")}
    assert {"index.html", "speed.html", "figures.html", "runs.html", "lra.html"} <= pages.keys()
    links = [link for page in pages.values() for link in page.links]
    assert "records/lra/text-t2-42.json" in links
    assert "figures/figure1.svg" in links
    for link in links:
        address, _, place = link.partition("#")
        assert not address or (site / address).is_file(), link
        assert not place or place == "content" or place in pages[address].places, link


def test_every_table_of_the_paper_has_a_page(results: Path, tmp_path: Path) -> None:
    write_site(results, tmp_path / "site")
    overview = text(tmp_path / "site", "index.html")
    papers = [
        name
        for name in list_tables()
        if any(f.paper for table in experiment(name).tables for f in table.figures.values())
    ]
    assert {"glue", "lm", "lra", "mlm"} <= set(papers)
    for name in papers:
        assert experiment(name).title in overview


@pytest.mark.parametrize("page", ["index.html", "lra.html", "speed.html", "figures.html"])
def test_every_page_changes_with_its_records(results: Path, tmp_path: Path, page: str) -> None:
    """A number that was typed into a page would stay."""
    for task in ("listops", "image", "pathfinder", "retrieval"):
        for method in ("t2", "vanilla"):
            write_record(results, record_tree(task, method, accuracy=0.5))
    write_site(results, tmp_path / "before")
    write_record(results, record_tree("text", "t2", accuracy=0.7654))
    bench = results / "bench" / "speed-paper.json"
    record = json.loads(bench.read_text())
    next(row for row in record["rows"] if row["method"] == "t2")["train_steps_per_second"] = 4321.5
    bench.write_text(json.dumps(record))
    (results / "figures" / "figure1.csv").write_text("method,score\nt2,4321.5\n")
    write_site(results, tmp_path / "after")
    number = {"index.html": "55.31", "lra.html": "76.54"}.get(page, "4,321.5")
    assert number not in text(tmp_path / "before", page)
    assert number in text(tmp_path / "after", page)


def test_a_table_page_has_ours_the_papers_the_ratio_and_where_they_come_from(results: Path, tmp_path: Path) -> None:
    write_record(results, record_tree("text", "t1", accuracy=0.5, commit="abcdef0123456789", data=STAND_IN))
    write_site(results, tmp_path / "site")
    page = text(tmp_path / "site", "lra.html")
    for part in (">72.13 [", ">72.20<", "transnormer reproduce lra", "skyformer: any", "abcdef012345<"):
        assert part in page, part
    assert "transnormer train lra/text" in page
    assert "text: records of 2 data sets, which must not be compared" in page
    assert "<strong>41.00 [" in page
    assert "<strong>72.13" not in page
    assert f"{41 / 41.6:.3f}" in page
    # Once a column has stand-in data, nothing in it is divided by the paper's.
    assert f"{72.13 / 72.2:.3f}" not in page


def test_a_table_page_has_intervals_and_bold_and_the_words_about_its_set_up_as_the_generated_page(
    results: Path, tmp_path: Path
) -> None:
    tuned = {"recipe": "lra/tuned/text", "examples": {"test": 400}}
    (results / "lra-tuned").mkdir()
    for method, accuracy in (("t1", 0.70), ("t2", 0.72), ("vanilla", 0.60)):
        tree = record_tree("text", method, accuracy=accuracy, **tuned)
        (results / "lra-tuned" / f"{tree['name']}.json").write_text(json.dumps(tree))
    write_site(results, tmp_path / "site")
    page = text(tmp_path / "site", "lra-tuned.html")
    assert "<strong>72.00 [67.4, 76.2]</strong>" in page
    assert "<strong>70.00 [65.3, 74.3]</strong>" in page
    assert ">60.00 [55.1, 64.7]</td>" in page
    assert "is no comparison on equal terms" in page


def test_accuracies_of_the_arena_have_trivial_rules_beside_them(results: Path, tmp_path: Path) -> None:
    write_site(results, tmp_path / "without")
    assert "What a number means" not in text(tmp_path / "without", "lra.html")
    shutil.copytree(ROOT / "results" / "lra-data", results / "lra-data")
    record = json.loads((results / "lra-data" / "listops.json").read_text())
    record["baselines"]["root operator"] = 0.4321
    (results / "lra-data" / "listops.json").write_text(json.dumps(record))
    write_site(results, tmp_path / "with")
    assert ">43.21</td>" in text(tmp_path / "with", "lra.html")
    assert "What a number means" not in text(tmp_path / "with", "lm-wikitext103.html")


def test_speeds_are_named_by_how_they_ran(results: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "results" / "bench" / "speed-paper-eager.json", results / "bench")
    shutil.copy(ROOT / "results" / "bench" / "speed-paper.json", results / "bench" / "speed-another.json")
    write_site(results, tmp_path / "site")
    for page in ("index.html", "speed.html"):
        for name in ("op by op", "a CUDA graph a step", "a CUDA graph a step, speed-paper"):
            assert name in text(tmp_path / "site", page)


def test_numbers_on_a_corpus_of_another_name_are_not_divided_by_the_papers(results: Path, tmp_path: Path) -> None:
    for name, label in (("of-python", "python"), ("of-the-papers", "wikitext103")):
        write_record(results, record_tree("listops", "t2", accuracy=0.41, data={**PUBLISHED, "label": label}))
        write_site(results, tmp_path / name)
    assert f"{41 / 41.6:.3f}" not in text(tmp_path / "of-python", "lra.html")
    assert f"{41 / 41.6:.3f}" in text(tmp_path / "of-the-papers", "lra.html")


def test_a_table_of_several_has_its_own_command_and_its_own_figure_of_each_record(
    results: Path, tmp_path: Path
) -> None:
    scores = {"valid": {"step": 3, "metrics": {"perplexity": 4.5}}, "test": {"step": 3, "metrics": {"perplexity": 6.7}}}
    gradients = {"steps": 3, "mean": 1.0, "relative_deviation": 0.89, "nonfinite": 0}
    tree = record_tree("any", "linear_elu", name="mlm-python-linear_elu-42", recipe="ablations/mlm-python", **scores)
    (results / "ablations").mkdir()
    record = {**tree, "primary_metric": "perplexity", "gradient_norm": gradients}
    (results / "ablations" / f"{tree['name']}.json").write_text(json.dumps(record))
    write_site(results, tmp_path / "site")
    commands = [f"transnormer reproduce ablations --table {name} --setup tiny" for name in ("scaling", "gradients")]
    assert all(command in text(tmp_path / "site", "index.html") for command in commands)
    for name, command, figure in zip(("scaling", "gradients"), commands, ("4.50", "0.89"), strict=True):
        (page,) = (tmp_path / "site").glob(f"ablations-{name}-tiny-*.html")
        assert command in page.read_text()
        assert f"masked {figure}</td>" in page.read_text()
        assert "6.70" not in page.read_text()


def test_a_figure_has_what_its_record_says_and_its_numbers_where_they_are_few(results: Path, tmp_path: Path) -> None:
    write_site(results, tmp_path / "few")
    page = text(tmp_path / "few", "figures.html")
    for part in (
        "The paper: T2 is highest.",
        "Measured: at 1 token.",
        "without a score: flash",
        ">12.5</td>",
        'href="figures/figure1.csv"',
    ):
        assert part in page, part
    (results / "figures" / "figure1.csv").write_text("method,score\n" + "t2,12.5\n" * 500)
    write_site(results, tmp_path / "many")
    assert "12.5" not in text(tmp_path / "many", "figures.html")
    shutil.rmtree(results / "figures")
    write_site(results, tmp_path / "none")
    for site, missing in (("few", ("figure2a", "figure2b")), ("none", ("figure1", "figure2a", "figure2b"))):
        page = text(tmp_path / site, "figures.html")
        assert page.count("<code>transnormer reproduce figures</code>") == len(missing)
        assert all(f"<li>{name}, {CONTENTS[name].about}: " in page for name in missing)


def test_claims_are_counted_by_what_became_of_them(results: Path, tmp_path: Path) -> None:
    (results / "ablations").mkdir()
    scores = {"primary_metric": "perplexity", "higher_is_better": False, "test": None}
    for row, perplexity in (("t2", 5.0), ("t2-norm-diag", 5.0), ("linear_elu", 5.0), ("norm", 6.0)):
        valid = {"step": 3, "metrics": {"perplexity": perplexity}}
        tree = record_tree(
            "any", row, name=f"mlm-enwiki-{row}-42", recipe="ablations/mlm-enwiki", valid=valid, **scores
        )
        (results / "ablations" / f"{tree['name']}.json").write_text(json.dumps(tree))
    write_site(results, tmp_path / "site")
    page = text(tmp_path / "site", "index.html")
    assert "1 does not hold, 1 undecided, " in page  # of table 1 and of table 9
    shown = page.count('class="verdict')
    counted = [int(number) for number in re.findall(r"(\d+) (?:holds?|do|does|undecided|not tested)\b", page)]
    assert sum(counted) == shown == int(re.search(r"Of (\d+) claims", page)[1])


def test_a_table_that_never_ran_says_so(results: Path, tmp_path: Path) -> None:
    write_site(results, tmp_path / "site")
    assert "Nothing has run yet" in text(tmp_path / "site", "lm-wikitext103.html")
    assert "Nothing has run yet" not in text(tmp_path / "site", "lra.html")


def test_the_same_records_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_site(results, tmp_path / name)
    files = [file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file()]
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)


def test_an_older_site_is_replaced_and_what_is_not_its_own_stays(results: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_site(results, site, read_runs([write_run(tmp_path / "run", "t2-tiny")]))
    (site / "mine.txt").write_text("mine")
    (results / "lra" / "listops-t2-42.json").unlink()
    write_site(results, site)
    assert not (site / "runs.html").exists()
    assert not (site / "records" / "lra" / "listops-t2-42.json").exists()
    assert (site / "mine.txt").read_text() == "mine"


def test_no_other_folder_is_written_into(results: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "index.html").write_text("somebody's")
    with pytest.raises(ConfigError, match="no site of ours"):
        write_site(results, foreign)
    assert [file.name for file in foreign.iterdir()] == ["index.html"]
    with pytest.raises(ConfigError, match="is a file"):
        write_site(results, foreign / "index.html")
    with pytest.raises(ConfigError, match="there is no folder"):
        write_site(results, tmp_path / "typo" / "site")
    (foreign / "site.json").write_text("{}")
    with pytest.raises(DataError, match=r"site.json is damaged, or another program's"):
        write_site(results, foreign)
    (foreign / "site.json").write_text(json.dumps({"made_by": "transnormer report site", "files": ["../results/lra"]}))
    write_site(results, foreign)
    assert (results / "lra").is_dir()


@pytest.mark.parametrize("make", [True, False])
def test_results_without_records(tmp_path: Path, make: bool) -> None:
    if make:
        (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no records" if make else "empty is not a folder"):
        write_site(tmp_path / "empty", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_damaged_record_is_named(results: Path, tmp_path: Path) -> None:
    (results / "lra" / "text-t2-42.json").write_text("{")
    with pytest.raises(DataError, match=r"text-t2-42.json is not JSON"):
        write_site(results, tmp_path / "site")
    assert not (tmp_path / "site").exists()
