"""`transnormer eval`: score the model of a run, or of a model folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.cli.lists import parse_lengths
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.errors import ConfigError
from transnormer.files import require_place_for


class Split(StrEnum):
    """What a model may be scored on."""

    valid = "valid"
    test = "test"


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or with --text a model folder.")],
    split: Annotated[Split | None, typer.Option(help="Which held-out split.", show_default="valid")] = None,
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of the run.", show_default="final")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Score text files instead of a split: a name or a pattern in quotes (may be repeated)."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a window.", show_default="as in training")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Sliding windows: each scores only its last N tokens.", metavar="N")
    ] = None,
    carry: Annotated[
        bool, typer.Option("--carry", help="No windows: carry the state through whole documents.")
    ] = False,
    contexts: Annotated[
        str | None, typer.Option(help="The perplexity at each of these contexts, k = 1024; also draws it.")
    ] = None,
    beside: Annotated[
        list[Path] | None, typer.Option(help="--contexts: draw the curves of this JSON file too (may be repeated).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the numbers.", show_default="RUN/eval-....json")
    ] = None,
) -> None:
    """Score a model.

    A run of any task is scored as it was while it trained. A causal language model is read in windows without
    overlap, or in sliding windows (--stride), or document by document with a carried state (--carry).

    Example: transnormer eval run --split test --stride 256

    Example: transnormer eval run/final --text book.txt --carry

    Example: transnormer eval run --contexts 128,512,2k,8k
    """
    from transnormer.data.text_files import paths_of

    asked = Asked(split, list(paths_of(text or []).values()), context, stride, carry, contexts)
    asked.check()
    lengths = parse_lengths(contexts, "--contexts") if contexts else None
    if beside and not contexts:
        raise ConfigError("--beside is for the plot of --contexts", "add --contexts 128,256,512")
    _check_files(asked.text, beside or [])
    if out is not None:
        require_place_for(out)
    from transnormer.train.run_folder import RunFolder

    is_run = (run / "config.yaml").is_file()
    if text and not is_run:
        model_folder(run, checkpoint)
    elif not (run / "config.json").is_file():
        RunFolder(run).read_config()  # says what is wrong with it before torch is loaded, which takes seconds
    weights = checkpoint or Weights.final
    load_torch()
    if is_run and asked.is_as_in_training:
        from transnormer.train.loop import evaluate_run

        scored = evaluate_run(run, asked.on, weights.value)
        if os.environ.get("RANK", "0") != "0":  # of several processes one speaks for all
            return
    else:
        scored = _score(run, checkpoint, asked, lengths)
    _show(scored)
    target = out or (run / asked.file_name(weights) if is_run else None)
    if target is None:
        return
    _write(target, scored)
    if contexts:
        _draw(target.with_suffix(".svg"), [target, *(beside or [])])


@dataclass(frozen=True)
class Asked:
    """What is to be scored, and how; beside that, the options of the command are about the model."""

    split: Split | None
    text: list[Path]
    context: int | None
    stride: int | None
    carry: bool
    contexts: str | None

    @property
    def on(self) -> str:
        """The split, where it is not a text."""
        return (self.split or Split.valid).value

    @property
    def is_as_in_training(self) -> bool:
        """Whether a run of any task can be scored so."""
        return not (self.text or self.context or self.stride or self.carry or self.contexts)

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.split and self.text:
            raise ConfigError("--split and --text are two texts to score", "leave one of them out")
        if self.carry and (self.stride or self.context):
            given = "--stride" if self.stride else "--context"
            raise ConfigError(f"--carry reads without windows, {given} is about windows", "leave one of them out")
        if self.contexts and (self.carry or self.stride or self.context):
            raise ConfigError("--contexts stands alone", "leave --carry, --stride and --context out")

    def file_name(self, weights: Weights) -> str:
        """Of the result in a run folder; every eval-*.json is about a split, as readers of run folders expect."""
        kind = "contexts" if self.contexts else "text" if self.text else "eval"
        what = "" if kind == "text" else "-text" if self.text else f"-{self.on}"
        numbers = (("context", self.context), ("stride", self.stride))
        options = [f"-{name}{number}" for name, number in numbers if number] + ["-carry"] * self.carry
        return f"{kind}-{weights.value}{what}{''.join(options)}.json"


def _check_files(texts: list[Path], curves: list[Path]) -> None:
    """Refuse what cannot be read before anything is computed."""
    from transnormer.data.excerpts import whole_file
    from transnormer.report.context_curves import read_contexts

    for file in texts:
        whole_file(file)
    for file in curves:
        read_contexts(file)


def _score(run: Path, checkpoint: Weights | None, asked: Asked, contexts: list[int] | None) -> dict[str, Any]:
    from transnormer.train.evaluate import evaluate_contexts, evaluate_text, open_subject

    subject = open_subject(run, checkpoint.value if checkpoint else None, asked.on, asked.text)
    if contexts:
        return evaluate_contexts(subject, contexts)
    return evaluate_text(subject, asked.context, asked.stride, asked.carry)


def _show(scored: dict[str, Any]) -> None:
    if "run" in scored:
        model = f"{scored['run']}: {scored['checkpoint']} weights (step {scored['step']:,})"
    else:
        model = scored["model"]
    print_text(f"{model} on {scored['split'] if 'split' in scored else ', '.join(scored['texts'])}")
    if "contexts" in scored:
        ways = ("windows", "positions")
        rows = [(f"{row['context']:,}", *(row[way]["perplexity"] for way in ways)) for row in scored["contexts"]]
        print_table(["context", *(f"perplexity, {way}" for way in ways)], rows)
    else:
        from transnormer.journal import worth_reading

        print_table(["metric", "value"], worth_reading(scored["metrics"]).items())
    if counts := scored.get("counts"):
        about = "about " if counts["estimated"] else ""
        known = f", {about}{counts['words']:,} words, {about}{counts['bytes']:,} bytes" if counts["bytes"] else ""
        print_text(f"{counts['tokens']:,} tokens{known}")
    print_text(scored["protocol"])


def _write(target: Path, scored: dict[str, Any]) -> None:
    from transnormer.files import disk_errors, write_json

    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, scored)
    print_text(f"written to {target}")


def _draw(target: Path, files: list[Path]) -> None:
    from transnormer.files import write_text
    from transnormer.report.context_curves import draw_contexts

    write_text(target, draw_contexts(files))
    print_text(f"drawn in {target}")
