"""`transnormer eval` on a real run: every protocol, its file and its counts, and what bad input gets."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from transnormer.data.store import TokenStore


def written(done, path: Path) -> dict:
    assert done.code == 0, done.err
    assert f"written to {path}" in done.out
    return json.loads(path.read_text())


def test_every_protocol_scores_every_token_and_says_what_it_did(cli: Callable, finished_run: Path, store: Path) -> None:
    info = TokenStore.open(store).splits["test"]
    scored = {}
    for name, options in {
        "context32": ("--context", "32"),
        "stride8": ("--stride", "8"),
        "stride32": ("--stride", "32"),
        "carry": ("--carry",),
    }.items():
        done = cli("eval", finished_run, "--split", "test", *options)
        scored[name] = written(done, finished_run / f"eval-final-test-{name}.json")
        assert scored[name]["counts"] == {
            "tokens": info.tokens - 1,
            "words": info.words,
            "bytes": info.bytes - 1,
            "estimated": False,
        }
        assert f"{info.tokens - 1:,} tokens, {info.words:,} words, {info.bytes - 1:,} bytes" in done.out
        assert scored[name]["protocol"] in done.out
        assert scored[name]["step"] == 4
    assert scored["stride32"]["metrics"] == scored["context32"]["metrics"]
    assert "sliding windows of 32 tokens, 8 apart" in scored["stride8"]["protocol"]
    assert "carried through each document" in scored["carry"]["protocol"]
    assert scored["carry"]["documents"] == 1
    losses = {name: result["metrics"]["loss"] for name, result in scored.items()}
    assert len({round(loss, 9) for loss in losses.values()}) == 3
    whole = losses["carry"] * (info.tokens - 1)
    assert scored["carry"]["metrics"]["bits_per_byte"] == pytest.approx(whole / math.log(2) / (info.bytes - 1))
    assert scored["carry"]["metrics"]["word_perplexity"] == pytest.approx(math.exp(whole / info.words))


def test_the_default_counts_too_and_says_when_it_estimates(cli: Callable, finished_run: Path) -> None:
    done = cli("eval", finished_run)
    found = written(done, finished_run / "eval-final-valid.json")
    assert found["counts"]["tokens"] == 4 * 32  # data.eval_windows is 4
    assert found["counts"]["estimated"] is True
    assert found["context"] == 32
    assert ", about " in done.out


def test_a_text_is_scored_by_a_run_and_by_its_model_folder_alike(
    cli: Callable, finished_run: Path, tmp_path: Path
) -> None:
    text = tmp_path / "some.txt"
    text.write_text("the naïve cat\n" * 30)
    results = [
        written(
            cli("eval", place, "--text", text, "--context", "32", "--out", tmp_path / f"{number}.json"),
            tmp_path / f"{number}.json",
        )
        for number, place in enumerate([finished_run, finished_run / "final"])
    ]
    assert results[0]["metrics"] == results[1]["metrics"]
    size = len(text.read_bytes())
    assert results[0]["counts"] == {"tokens": size, "words": 90, "bytes": size, "estimated": False}
    assert results[1]["model"] == str(finished_run / "final")
    assert list(results[1]["texts"]) == [str(text)]
    assert "scored on every token of the text" in results[1]["protocol"]
    done = cli("eval", finished_run, "--text", text, "--stride", "16")
    assert f"written to {finished_run / 'text-final-stride16.json'}" in done.out
    done = cli("eval", finished_run / "final", "--text", text)  # nothing is written into a model folder
    assert done.code == 0
    assert "windows of 1024 tokens" in done.out
    assert "written" not in done.out


def test_a_curve_over_contexts_is_written_and_drawn(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    done = cli("eval", finished_run, "--contexts", "8,16,64")
    found = written(done, finished_run / "contexts-final-valid.json")
    assert [row["context"] for row in found["contexts"]] == [8, 16, 64]
    assert found["trained_at"] == 32
    assert found["counts"]["tokens"] % 64 == 0
    for row in found["contexts"]:
        assert f"{row['positions']['perplexity']:.6g}" in done.out
        assert set(row["windows"]) == {"loss", "perplexity", "accuracy", "word_perplexity", "bits_per_byte"}
    first = (finished_run / "contexts-final-valid.svg").read_text()
    assert first.startswith("<svg")
    other = tmp_path / "other.json"
    shutil.copy(finished_run / "contexts-final-valid.json", other)
    done = cli("eval", finished_run, "--contexts", "8,16,64", "--beside", other)
    assert done.code == 0
    assert len((finished_run / "contexts-final-valid.svg").read_text()) > len(first)
    (tmp_path / "none.json").write_text("{}")
    done = cli("eval", finished_run, "--contexts", "8", "--beside", tmp_path / "none.json")
    assert done.code == 5
    assert "none.json holds no context curve" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["RUN", "--stride", "33"], 2, "--stride 33 does not fit windows of 32 tokens"),
        (["RUN", "--stride", "4", "--carry"], 2, "--carry reads without windows, --stride is about windows"),
        (["RUN", "--context", "4", "--carry"], 2, "--carry reads without windows, --context is about windows"),
        (["RUN", "--contexts", "8,16", "--carry"], 2, "--contexts stands alone"),
        (["RUN", "--contexts", "8,12"], 2, "--contexts: 8 is odd or does not divide 12"),
        (["RUN", "--contexts", "8,many"], 2, "--contexts: 'many' is not a number"),
        (["RUN", "--contexts", "64k"], 5, "tokens are too few for a context of 65,536"),
        (["RUN", "--beside", "x.json"], 2, "--beside is for the plot of --contexts"),
        (["RUN", "--split", "test", "--text", "TEXT"], 2, "--split and --text are two texts to score"),
        (["RUN/final", "--carry"], 2, "is a model without data"),
        (["RUN/final", "--text", "TEXT", "--checkpoint", "best"], 2, "it has no 'best' checkpoint"),
        (["RUN", "--text", "SHORT"], 5, "short.txt has 1 token, too few to be scored"),
        (["RUN", "--text", "nothing.txt"], 5, "nothing.txt does not exist"),
        (["MASKED", "--carry"], 2, "is a run of masked_lm, which does not predict the next token"),
        (["MASKED/final", "--text", "TEXT"], 2, "TransNormerForMaskedLM, which does not predict the next token"),
    ],
)
def test_bad_input_gets_one_line(
    cli: Callable, finished_run: Path, masked_run: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "text.txt").write_text("some text that can be scored")
    (tmp_path / "short.txt").write_text("a")
    places = {"RUN": finished_run, "MASKED": masked_run, "TEXT": tmp_path / "text.txt", "SHORT": tmp_path / "short.txt"}
    for name, place in places.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    before = sorted(finished_run.rglob("*"))
    done = cli("eval", *arguments)
    assert message in done.err
    assert done.code == code, done.err
    assert len(done.err.splitlines()) <= 2  # an error and a hint
    assert sorted(finished_run.rglob("*")) == before


def test_a_tokenizer_that_does_not_fit_the_model(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(finished_run / "final", folder)
    (folder / "manifest.json").unlink()  # a folder of somebody else's
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    extra = {**tokenizer["added_tokens"][-1], "id": 259, "content": "<extra>"}
    tokenizer["added_tokens"].append(extra)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "text.txt").write_text("some text that can be scored")
    done = cli("eval", folder, "--text", tmp_path / "text.txt")
    assert done.code == 5
    assert "has 260 tokens, the model 259" in done.err
