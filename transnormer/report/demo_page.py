"""The page of the demo: its models side by side, their losses, both devils in pictures, and what each model writes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from transnormer.analysis.attention_maps import draw
from transnormer.analysis.dilution import RATIOS
from transnormer.experiments.demo import COLUMNS, MAP_TOKENS, Twin, first_layer_attention
from transnormer.report.curves import Curve, draw_curves
from transnormer.report.page import Page, Picture, Section, Table, write_page
from transnormer.report.run_page import draw_losses, facts_of
from transnormer.report.run_record import read_run


def write_demo_page(twins: Sequence[Twin], samples: Mapping[str, str], path: Path) -> None:
    """Render it into a file; a sample is what the model of that name wrote."""
    result = twins[0].result
    page = Page(
        title="TransNormer demo",
        lead=f"Three models of the same size read {result['tokens']:,} tokens of Python source each, one after the "
        "other on this machine: a TransNormer (T2), softmax attention in T2's own shell with RoPE (llama), and a "
        "linear transformer (1+elu). Each has its own best learning rate of three.",
        sections=[
            Section(
                "Side by side",
                text=f"Scored on held-out files: {result['protocol']}. The decode state of T2 and of 1+elu stays as it "
                "is however long the sequence grows; that of softmax attention grows with it.",
                table=Table(COLUMNS, [twin.row() for twin in twins]),
            ),
            Section(
                "Loss",
                text="Faint: training batches. Dots: held-out files.",
                pictures=[Picture(svg=draw_losses([read_run(twin.folder) for twin in twins]))],
            ),
            Section(
                "First devil: gradients",
                text="The paper finds that dividing by a row sum, as 1+elu does, leaves gradients without a bound, and "
                "that a norm in its place bounds them. Here is the norm of the whole gradient over training, before "
                "clipping; its standard deviation over its mean is in the table.",
                pictures=[Picture(svg=_gradient_norms(twins))],
            ),
            Section(
                "Second devil: dilution",
                text="How much of a token's attention falls on its neighbourhood, against the size of that "
                "neighbourhood, as a mean over layers: a curve close to equal weights is attention that is spread "
                "thin. T2's first two layers see blocks of 64 tokens only; its last two see everything, thinly.",
                pictures=[Picture(svg=_dilution(twins))],
            ),
            Section(
                "What the first layer looks at",
                text=f"Attention of the first layer on {MAP_TOKENS} bytes of a held-out file, the mean over its heads: "
                "queries from top to bottom, keys from left to right, darker is more. T2 sees two blocks of 64 "
                "tokens; the others see all earlier ones.",
                pictures=[_attention_maps(twins)],
            ),
            *(Section(f"What {name} writes", listing=sample) for name, sample in samples.items()),
        ],
        facts=facts_of(result),
    )
    write_page(page, path)


def _gradient_norms(twins: Sequence[Twin]) -> str:
    curves = [Curve(twin.name, *twin.gradient_norms, dots=True) for twin in twins]
    return draw_curves(curves, x_label="step", y_label="gradient norm")


def _dilution(twins: Sequence[Twin]) -> str:
    curves = [Curve(twin.name, RATIOS, twin.dilution["mean"]["scores"], dots=True) for twin in twins]
    uniform = Curve("equal weights", RATIOS, twins[0].dilution["uniform"]["scores"])
    return draw_curves(
        [*curves, uniform], x_label="neighbourhood, as a share of the sequence", y_label="attention inside it"
    )


def _attention_maps(twins: Sequence[Twin]) -> Picture:
    """As an image inside the page, which stays one file."""
    figure = draw({("first layer", twin.name): first_layer_attention(twin) for twin in twins}, [""] * MAP_TOKENS)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    address = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    return Picture(image=address, alt="Three attention matrices: " + ", ".join(twin.name for twin in twins))
