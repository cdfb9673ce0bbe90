"""The page of the demo: its models side by side, their losses, both devils in pictures, and what each model writes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from transnormer.analysis.attention_maps import draw
from transnormer.analysis.dilution import RATIOS
from transnormer.experiments.demo import COLUMNS, MAP_TOKENS, Twin, first_layer_attention
from transnormer.experiments.paper.ablations import ABLATIONS
from transnormer.journal import relative_deviation
from transnormer.report.curves import Curve, draw_curves
from transnormer.report.page import Page, Picture, Section, Table, write_page
from transnormer.report.run_page import draw_losses, facts_of
from transnormer.report.run_record import read_run

# Which row of the paper's Table 2 is nearest to each model.
_PAPERS_ROWS = {"t2": "norm", "llama": "vanilla", "linear_elu": "linear_elu"}


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
                text="Faint lines are training batches, dots held-out files, both in nats a byte: lower is better. "
                + _losses_at_the_end(twins),
                pictures=[Picture(svg=draw_losses([read_run(twin.folder) for twin in twins]))],
            ),
            Section(
                "First devil: gradients",
                text="The paper finds that dividing by a row sum, as 1+elu does, leaves gradients without a bound, and "
                "that a norm in its place bounds them. Here is the norm of the whole gradient over training, before "
                "clipping; its standard deviation over its mean is in the table.",
                pictures=[Picture(svg=_gradient_norms(twins), caption=compared_with_the_paper(twins))],
            ),
            Section(
                "Second devil: dilution",
                text="How much of a token's attention falls on its neighbourhood, against the size of that "
                "neighbourhood, as a mean over layers: a curve close to equal weights is attention that is spread "
                "thin. T2's first two layers see blocks of 64 tokens only, so that its curve may lie above that of "
                "softmax; its last two see everything, thinly.",
                pictures=[Picture(svg=_dilution(twins))],
            ),
            Section(
                "What the first layer looks at",
                text=f"Attention of the first layer on {MAP_TOKENS} bytes of a held-out file, the mean over its heads: "
                "queries from top to bottom, keys from left to right, darker is more. T2 sees two blocks of 64 "
                "tokens; the others see all earlier ones.",
                pictures=[_attention_map(twin) for twin in twins],
            ),
            *(Section(f"What {name} writes", listing=sample) for name, sample in samples.items()),
        ],
        facts=facts_of(result),
    )
    write_page(page, path)


def _losses_at_the_end(twins: Sequence[Twin]) -> str:
    losses = {twin.name: twin.result["metrics"]["loss"] for twin in twins}
    shown = ", ".join(f"{name} {loss:.3f}" for name, loss in sorted(losses.items(), key=lambda item: item[1]))
    return f"At the end the held-out files have: {shown}."


def compared_with_the_paper(twins: Sequence[Twin]) -> str:
    """The deviations of gradient norms and their order beside the paper's, of all steps and of those after warm-up."""
    rows = {row: found for group in ABLATIONS["gradients"].groups for row, found in group.values() if found}
    papers = {name: rows[row] for name, row in _PAPERS_ROWS.items()}
    warmup = max(twin.config.optim.warmup_steps for twin in twins)
    text = f"Standard deviation over mean, of the nearest methods in the paper's Table 2: {_in_order(papers)}."
    for steps, after in (("of all logged steps", 0), (f"without the warm-up (to step {warmup})", warmup)):
        norms = {
            twin.name.removesuffix("-tiny"): [
                norm for step, norm in zip(*twin.gradient_norms, strict=True) if step > after
            ]
            for twin in twins
        }
        if min(map(len, norms.values())) > 1:
            found = {name: relative_deviation(each) for name, each in norms.items()}
            same = _by_size(found) == _by_size(papers)
            text += f" Here, {steps}: {_in_order(found)}, {'the' if same else 'not the'} paper's order."
    return text


def _by_size(figures: Mapping[str, float]) -> list[str]:
    return sorted(figures, key=lambda name: -figures[name])


def _in_order(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figures[name]:.2f}" for name in _by_size(figures))


def _gradient_norms(twins: Sequence[Twin]) -> str:
    curves = [Curve(twin.name, *twin.gradient_norms, dots=True) for twin in twins]
    return draw_curves(curves, x_label="step", y_label="gradient norm")


def _dilution(twins: Sequence[Twin]) -> str:
    curves = [Curve(twin.name, RATIOS, twin.dilution["mean"]["scores"], dots=True) for twin in twins]
    uniform = Curve("equal weights", RATIOS, twins[0].dilution["uniform"]["scores"])
    return draw_curves(
        [*curves, uniform], x_label="neighbourhood, as a share of the sequence", y_label="attention inside it"
    )


def _attention_map(twin: Twin) -> Picture:
    """As an image inside the page, which stays one file."""
    figure = draw({("first layer", twin.name): first_layer_attention(twin)}, [""] * MAP_TOKENS)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    address = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    return Picture(image=address, alt=f"The attention matrix of {twin.name}", small=True)
