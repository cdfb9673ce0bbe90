"""`transnormer generate`: write text with a trained model."""

from __future__ import annotations

import secrets
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_note
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.errors import DataError


class Device(StrEnum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def generate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or any Hugging Face folder of a causal model.")
    ],
    prompt: Annotated[
        str, typer.Option(help="The text to continue; empty begins a new one, - reads it from standard input.")
    ] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How many tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="Below 1 is safer, above 1 is wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k best tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the best tokens of this total probability.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the best token.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed writes the same text.", show_default="random")
    ] = None,
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of a run.", show_default="final")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Write on after an end-of-text token.")] = False,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="torch.compile the step on a GPU: for very long texts.")
    ] = False,
) -> None:
    """Write text with a trained model, shown as it is written.

    Example: transnormer generate run --prompt "def main(" --max-new-tokens 200 --temperature 0.8 --seed 1
    """
    folder = model_folder(run, checkpoint)  # before torch is loaded, which takes seconds
    if prompt == "-":
        prompt = _from_stdin()
    load_torch()
    from transnormer.generate.load import load_causal_lm
    from transnormer.generate.sampling import Sampling
    from transnormer.generate.stream import stream_text

    sampling = Sampling(temperature, top_k, top_p)  # checked, whether it is used or not
    model, tokenizer = load_causal_lm(folder, device.value)
    seed = secrets.randbelow(2**32) if seed is None else seed
    chosen = "greedy" if greedy else f"seed {seed}"
    precision = str(model.dtype).removeprefix("torch.")
    print_note(f"{type(model).__name__} from {folder} on {model.device.type} in {precision}, {chosen}")
    shown = False

    def show(piece: str) -> None:
        nonlocal shown
        sys.stdout.write(piece if shown else prompt + piece)
        sys.stdout.flush()
        shown = True

    try:
        pace = stream_text(
            model,
            tokenizer,
            prompt,
            max_new_tokens,
            show,
            sampling=None if greedy else sampling,
            seed=seed,
            stop_at_eos=not ignore_eos,
            compiled=compiled,
        )
    finally:  # what comes next, also after Ctrl-C, begins on a line of its own
        if shown:
            show("\n")
    print_note(str(pace))


def _from_stdin() -> str:
    """All of standard input, but for the line end that `echo` and editors put last."""
    if sys.stdin.isatty():
        print_note("the prompt, ended with Ctrl-D on a line of its own:")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"--prompt -: standard input is not UTF-8 (byte {error.start})", "convert it") from error
