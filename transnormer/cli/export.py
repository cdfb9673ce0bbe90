"""`transnormer export`: a trained model as a Hugging Face folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import print_table, print_text
from transnormer.cli.model_folder import Weights, model_folder


class Dtype(StrEnum):
    """The type of the exported weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a model folder inside one.")],
    out: Annotated[Path, typer.Option(help="The folder to write; must be new or empty.")],
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of a run.", show_default="final")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights.")] = Dtype.float32,
) -> None:
    """Write a trained model as a Hugging Face folder.

    It is loaded back and must give the same logits before it appears.

    Example: transnormer export run --out my-model --dtype bfloat16
    """
    folder = model_folder(run, checkpoint)  # before torch is loaded, which takes seconds
    from transnormer.models.export import export_model

    report = export_model(folder, out, dtype.value)
    print_table(["", str(out)], report.items())
    print_text(f"use it: {report['loads with']}.from_pretrained('{out}'), after `import transnormer`")
