"""`transnormer generate`: write text with a trained model."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import print_note
from transnormer.cli.model_folder import Weights, model_folder


class Device(StrEnum):
    """Where to run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def generate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or any Hugging Face folder of a causal model.")
    ],
    prompt: Annotated[str, typer.Option(help="The text to continue; empty begins a new one.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How many tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="Below 1 is safer, above 1 is wilder.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens of this total mass.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed writes the same text.")] = None,
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of a run.", show_default="final")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Write on after an end-of-text token.")] = False,
) -> None:
    """Write text with a trained model, shown as it is written.

    Example: transnormer generate run --prompt "def main(" --max-new-tokens 200 --temperature 0.8 --seed 1
    """
    from transnormer.generate.load import load_writer
    from transnormer.generate.stream import stream_text

    folder = model_folder(run, checkpoint)
    model, tokenizer = load_writer(folder, device.value)
    pieces = stream_text(
        model,
        tokenizer,
        prompt,
        max_new_tokens,
        do_sample=not greedy,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_at_eos=not ignore_eos,
    )
    print_note(f"{type(model).__name__} from {folder} on {model.device.type}")
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
