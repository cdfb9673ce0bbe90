"""The verbs on Long-Range Arena data: prepare, show, info, verify, train, eval; and what bad input gets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from lra_files import write_cifar_binary, write_imdb_folders, write_pairs

from transnormer.data.lra import listops

TINY = [
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "optim.warmup_steps=1",
    "train.steps=2",
    "train.batch_size=2",
    "train.device=cpu",
]
PNG = b"\x89PNG\r\n\x1a\n"


def test_from_nothing_to_a_tested_model(cli: Callable, tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = ("data", "prepare", "lra/listops", "--limit", "4", "--seed", "5", "--processes", "1", "--out")
    done = cli(*arguments, store)
    assert done.code == 0, done.err
    assert "generated with seed 5" in done.out
    assert "limited to 4 examples" in done.out
    assert f"transnormer train lra/listops --out run data.store={store}" in done.out
    assert cli(*arguments, tmp_path / "again").code == 0
    for path in store.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    done = cli("train", "lra/listops", "--out", tmp_path / "run", f"data.store={store}", *TINY)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    accuracy = result["test"]["metrics"]["accuracy"]
    assert "test split, once, with the best checkpoint (step 2): loss" in done.out
    assert f"accuracy {accuracy:.5g}" in done.out
    done = cli("eval", tmp_path / "run", "--split", "test", "--checkpoint", "best")
    assert f"{accuracy:.6g}" in done.out
    done = cli("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "page.html").read_text()
    assert re.search(r"<th[^>]*>test accuracy</th>", page)
    assert re.search(rf"<td[^>]*>{accuracy:.4g}</td>\s*</tr>", page)
    done = cli("generate", tmp_path / "run", "--prompt", "x")
    assert done.code == 2
    assert "does not predict the next token" in done.err
    done = cli("export", tmp_path / "run", "--out", tmp_path / "model")
    assert done.code == 0, done.err
    assert "use it: transformers.AutoModelForSequenceClassification.from_pretrained" in done.out
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "modeling_transnormer.py"]
    card = (tmp_path / "model" / "README.md").read_text()
    assert "tokenizer | none" in card
    assert "pipeline_tag" not in card


def test_info_and_verify_and_damage(cli: Callable, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = cli("data", "prepare", "lra/retrieval", "--source", write_pairs(tmp_path / "pairs"), "--out", store)
    assert done.code == 0, done.err
    info = cli("data", "info", store)
    assert info.code == 0
    assert "task lra/retrieval, read from new_aan_pairs.train.tsv" in info.out
    assert "not the published set: valid has 12 of 18,090" in info.out
    assert "0.500 0.500" in info.out
    assert cli("data", "verify", store).code == 0
    path = store / "valid-labels-00000.bin"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    done = cli("data", "verify", store)
    assert done.code == 5
    assert "valid-labels-00000.bin was altered" in done.err


def test_show_draws_images(cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for sheet in ("one.png", "two.png"):
        assert cli("data", "show", "lra/pathfinder", "--count", "5", "--seed", "1", "--out", sheet).code == 0
    assert Path("one.png").read_bytes()[:8] == PNG
    assert Path("one.png").read_bytes() == Path("two.png").read_bytes()
    done = cli("data", "show", "lra/image", "--source", write_cifar_binary(tmp_path / "cifar"), "--count", "4")
    assert done.code == 0, done.err
    assert "4 images of lra/image are in sheet.png" in done.out
    assert Path("sheet.png").read_bytes()[:8] == PNG
    assert cli("data", "prepare", "lra/pathfinder", "--limit", "2", "--processes", "1", "--out", "store").code == 0
    done = cli("data", "show", "store", "--split", "test", "--out", "store.png")
    assert "2 images of lra/pathfinder" in done.out
    assert "are in sheet-of-it" in cli("data", "show", "store", "--out", "sheet-of-it").out
    assert Path("sheet-of-it").read_bytes()[:8] == PNG
    for out, start in (("sheet.jpg", b"\xff\xd8\xff"), ("sheet.svg", b"<?xml"), ("sheet.PNG", PNG)):
        done = cli("data", "show", "store", "--out", out)
        assert done.code == 0, done.err
        assert Path(out).read_bytes().startswith(start)
    for out, message in (("no/such/folder.png", "cannot write"), ("sheet.xyz", "cannot draw")):
        done = cli("data", "show", "store", "--out", out)
        assert done.code == 2
        assert message in done.err


def test_show_prints_trees_and_excerpts(cli: Callable, tmp_path: Path) -> None:
    done = cli("data", "show", "lra/listops", "--count", "2", "--seed", "3")
    assert done.code == 0
    for number, (tokens, label) in enumerate(listops.generate(2, 3, processes=1)):
        assert f"example {number}: label {label}, {len(tokens):,} tokens" in done.out
        assert listops.to_tree_text(tokens) in done.out
    source = write_imdb_folders(tmp_path / "imdb")
    assert cli("data", "prepare", "lra/text", "--source", source, "--out", tmp_path / "store").code == 0
    done = cli("data", "show", tmp_path / "store", "--split", "test", "--count", "20")
    assert "and naïve." in done.out
    assert "and long�" in done.out
    assert "so so so ..." in done.out or "so so  ..." in done.out
    assert len(max(done.out.splitlines(), key=len)) < 500


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["prepare", "lra/imag", "--out", "x"], 2, "did you mean 'lra/image'?"),
        (["prepare", "lra", "--out", "x"], 2, "unknown Long-Range Arena task 'lra'"),
        (["prepare", "lra/image", "--out", "x"], 2, "needs a source"),
        (["prepare", "lra/image", "--source", "absent", "--out", "x"], 5, "absent does not exist"),
        (["prepare", "lra/listops", "--seed", "abc", "--out", "x"], 2, "--seed"),
        (["prepare", "lra/listops", "--seed", "-1", "--out", "x"], 2, "--seed"),
        (["prepare", "lra/listops", "--limit", "0", "--out", "x"], 2, "--limit"),
        (["prepare", "lra/listops", "--size", "64", "--out", "x"], 2, "no image size"),
        (["prepare", "lra/pathfinder", "--size", "33", "--out", "x"], 2, "sizes: 32, 64, 128"),
        (["prepare", "lra/listops", "--tokenizer", "bpe", "--out", "x"], 2, "leave --tokenizer out"),
        (["prepare", "python", "--limit", "5", "--out", "x"], 2, "leave --limit out"),
        (["show", "lra/listop"], 2, "did you mean 'lra/listops'?"),
        (["show", "lra/text"], 2, "needs a source"),
        (["show", "lra/listops", "--split", "test"], 2, "leave --split out"),
        (["show", "absent"], 5, "absent does not exist"),
        (["verify", "absent"], 5, "absent does not exist"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("data", *arguments)
    assert done.code == code
    assert message in " ".join(done.err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_train_refuses_a_store_of_something_else(cli: Callable, tmp_path: Path, store: Path) -> None:
    done = cli("train", "lra/image", "--out", tmp_path / "run", f"data.store={store}")
    assert done.code == 2
    assert "holds running text, not labelled examples" in done.err
    assert cli("data", "show", store).code == 2
    done = cli("train", "lra/image", "--out", tmp_path / "run", "model.preset=t3-lra-image")
    assert done.code == 2
    assert "did you mean" in done.err
    done = cli("train", "lra/imag", "--out", tmp_path / "run")
    assert done.code == 2
    done = cli("train", "lra/image", "--out", tmp_path / "run", "lra.protocol=lra")
    assert done.code == 2
    assert "skyformer, lra_compat" in done.err
    assert list(tmp_path.iterdir()) == []
