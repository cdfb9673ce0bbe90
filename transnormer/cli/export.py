"""`transnormer export`: a trained model as a Hugging Face folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.files import require_free, require_place_for


class Dtype(StrEnum):
    """The type of the exported weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a model folder inside one.")],
    out: Annotated[Path, typer.Option(help="The folder to write; must be new or empty.")],
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of a run.", show_default="final")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights.")] = Dtype.float32,
    license_id: Annotated[
        str, typer.Option("--license", help="Of the weights, as the Hub spells it, e.g. apache-2.0.")
    ] = "unknown",
) -> None:
    """Write a trained model as a Hugging Face folder with a model card.

    It is loaded back and must give the same logits before it appears. The card, README.md, has what the run folder says
    about data, recipe and scores.

    Example: transnormer export run --out my-model --dtype bfloat16
    """
    require_free(out)  # before torch is loaded, which takes seconds
    require_place_for(out)
    folder = model_folder(run, checkpoint)
    load_torch()
    from transnormer.models.export import export_model
    from transnormer.report.model_card import model_card

    name = out.resolve().name
    report = export_model(folder, out, dtype.value, lambda exported: model_card(name, folder, exported, license_id))
    print_table(["", str(out)], report.items())
    library, _, loader = report["loads with"].partition(".")
    if library == "transformers":
        print_text(f"use it: transformers.{loader}.from_pretrained({str(out)!r}, trust_remote_code=True)")
        print_text("after `import transnormer` it needs no trust_remote_code; the model card is README.md")
    else:
        print_text(f"use it: {library}.{loader}.from_pretrained({str(out)!r}); the model card is README.md")
