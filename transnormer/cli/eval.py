"""`transnormer eval`: score the model of a run, or of a model folder."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from transnormer.cli.console import print_table, print_text
from transnormer.cli.lists import parse_lengths
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.errors import ConfigError


class Split(StrEnum):
    """What a model may be scored on."""

    valid = "valid"
    test = "test"


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or with --text a model folder.")],
    split: Annotated[Split | None, typer.Option(help="Which held-out split.", show_default="valid")] = None,
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of the run.", show_default="final")] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Score this text file instead of a split (may be repeated).")
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
    _check_options(split, text, context, stride, carry, contexts, beside)
    from transnormer.train.run_folder import RunFolder

    is_run = (run / "config.yaml").is_file()
    if text and not is_run:
        model_folder(run, checkpoint)
    elif not (run / "config.json").is_file():
        RunFolder(run).read_config()  # says what is wrong with it before torch is loaded, which takes seconds
    on, weights = (split or Split.valid).value, checkpoint or Weights.final
    if is_run and not (text or context or stride or carry or contexts):
        from transnormer.train.loop import evaluate_run

        scored = evaluate_run(run, on, weights.value)
        if os.environ.get("RANK", "0") != "0":  # of several processes one speaks for all
            return
    else:
        scored = _score(run, on, checkpoint, text or [], context, stride, carry, contexts)
    _show(scored)
    target = out or (run / _name(weights, on, text, context, stride, carry, contexts) if is_run else None)
    if target is None:
        return
    _write(target, scored)
    if contexts:
        _draw(target.with_suffix(".svg"), [target, *(beside or [])])


def _name(
    weights: Weights,
    split: str,
    text: list[Path] | None,
    context: int | None,
    stride: int | None,
    carry: bool,
    contexts: str | None,
) -> str:
    """The file of a result in its run folder; every eval-*.json is about a split, as readers of run folders expect."""
    kind = "contexts" if contexts else "text" if text else "eval"
    what = "" if kind == "text" else "-text" if text else f"-{split}"
    options = [f"-{name}{number}" for name, number in (("context", context), ("stride", stride)) if number]
    return f"{kind}-{weights.value}{what}{''.join(options)}{'-carry' if carry else ''}.json"


def _check_options(
    split: Split | None,
    text: list[Path] | None,
    context: int | None,
    stride: int | None,
    carry: bool,
    contexts: str | None,
    beside: list[Path] | None,
) -> None:
    """Refuse options that contradict each other, and files that cannot be read."""
    from transnormer.data.excerpts import whole_file
    from transnormer.report.context_curves import read_contexts

    if split and text:
        raise ConfigError("--split and --text are two texts to score", "leave one of them out")
    if carry and (stride or context):
        given = "--stride" if stride else "--context"
        raise ConfigError(f"--carry reads without windows, {given} is about windows", "leave one of them out")
    if contexts and (carry or stride or context):
        raise ConfigError("--contexts stands alone", "leave --carry, --stride and --context out")
    if beside and not contexts:
        raise ConfigError("--beside is for the plot of --contexts", "add --contexts 128,256,512")
    for file in text or []:
        whole_file(file)
    for file in beside or []:
        read_contexts(file)


def _score(
    run: Path,
    split: str,
    checkpoint: Weights | None,
    texts: list[Path],
    context: int | None,
    stride: int | None,
    carry: bool,
    contexts: str | None,
) -> dict[str, Any]:
    wanted = parse_lengths(contexts, "--contexts") if contexts else None
    from transnormer.train.evaluate import evaluate_contexts, evaluate_text, open_subject

    subject = open_subject(run, checkpoint.value if checkpoint else None, split, texts)
    return evaluate_contexts(subject, wanted) if wanted else evaluate_text(subject, context, stride, carry)


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
        print_table(["metric", "value"], scored["metrics"].items())
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
