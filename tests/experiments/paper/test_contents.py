"""Every table and figure of the paper by its number: what makes it, and which records there are of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from record_case import make_record

from transnormer.cli.app import app
from transnormer.errors import ConfigError, DataError
from transnormer.experiments.paper import TABLES, experiment
from transnormer.experiments.paper.ablations import ABLATIONS
from transnormer.experiments.paper.contents import CONTENTS, entries, find


def test_every_number_of_the_paper_is_there() -> None:
    assert list(CONTENTS) == [*(f"table{number}" for number in range(1, 13)), "figure1", "figure2a", "figure2b"]
    for name, table in ABLATIONS.items():
        entry = CONTENTS[f"table{table.number}"]
        assert (entry.experiment, entry.table) == ("ablations", name)
    assert {entry.experiment for entry in entries().values()} - {None} == TABLES.keys()
    commands = {command.name for command in [*app.registered_commands, *app.registered_groups]}
    for entry in entries().values():
        if entry.experiment:
            assert entry.table is None or entry.table in experiment(entry.experiment).parts
        assert entry.command.split()[1] in commands


def test_numbers_and_names_are_found() -> None:
    assert find("table4") == CONTENTS["table4"]
    assert find("table8").command == "transnormer reproduce ablations --table proportion"
    assert find("lra").command == "transnormer reproduce lra"
    with pytest.raises(ConfigError, match=r"table7 is made by another .*`transnormer bench speed --setting paper`"):
        find("table7")
    with pytest.raises(ConfigError, match=r"no table 'tabel4' .did you mean 'table4'. .see `transnormer list tables`"):
        find("tabel4")
    with pytest.raises(ConfigError, match=r"known: ablations, all, .*table9") as raised:
        find("nosuch")
    assert str(raised.value).count("table12") == 1


def test_records_are_counted_by_their_data(tmp_path: Path) -> None:
    assert CONTENTS["table6"].records_in_words(tmp_path) == "none"
    assert CONTENTS["table7"].records_in_words(tmp_path) == "none"
    for folder in ("lra", "lra-tuned", "ablations", "bench"):
        (tmp_path / folder).mkdir()
    make_record("text", "t2").write(tmp_path / "lra")
    assert CONTENTS["table6"].records_in_words(tmp_path) == "1 (published)"
    stand_in = {"label": "stand-in", "digest": "1", "sizes": {}, "meta": {}}
    make_record("text", "vanilla", data=stand_in).write(tmp_path / "lra-tuned")
    assert CONTENTS["table6"].records_in_words(tmp_path) == "2 (published 1, stand-in 1)"
    ablation = make_record("text", "t2", name="mlm-enwiki-t2-ffn-42", recipe="ablations/mlm-enwiki")
    ablation.write(tmp_path / "ablations")
    assert CONTENTS["table10"].records_in_words(tmp_path) == "1 (published)"
    assert CONTENTS["table9"].records_in_words(tmp_path) == "none", "of another table of the same experiment"
    for name, gpus in (("speed-paper", ["A GPU"]), ("speed-paper-eager", ["A GPU"]), ("speed-paper-cpu", [])):
        measured = {"environment": {"hardware": {"gpus": gpus, "cpu": "a processor"}}}
        (tmp_path / "bench" / f"{name}.json").write_text(json.dumps(measured))
    assert CONTENTS["table7"].records_in_words(tmp_path) == "3 (a processor 1, A GPU 2)"
    (tmp_path / "figures").mkdir()
    for ending in ("svg", "csv"):
        (tmp_path / "figures" / f"figure1.{ending}").write_text("drawn")
    (tmp_path / "figures" / "figure1.json").write_text(json.dumps({"sources": ["a.json", "lra/*.json"]}))
    assert CONTENTS["figure1"].records_in_words(tmp_path) == "1 (a.json and lra/*.json)"
    (tmp_path / "figures" / "figure1.json").write_text("{}")
    with pytest.raises(DataError, match=r"figure1.json is damaged .*transnormer reproduce figures"):
        CONTENTS["figure1"].records_in_words(tmp_path)
    damaged = tmp_path / "ablations" / "damaged.json"
    damaged.write_text("{")
    with pytest.raises(Exception, match=re.escape(str(damaged))):
        CONTENTS["table9"].records_in_words(tmp_path)
