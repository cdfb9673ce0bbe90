"""`transnormer analyse dilution`: how much of a model's attention stays near."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from transnormer.cli.analyse_gradients import names_of
from transnormer.cli.console import load_torch, print_note, print_table, print_text
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.errors import ConfigError
from transnormer.files import require_place_for


def dilution(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or with --text model folders.")],
    text: Annotated[
        Path | None, typer.Option(help="A text file to read.", show_default="the validation split of each run")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a text (N).", show_default="as in training, up to 512")
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="How many texts of this length.")] = 8,
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of a run.", show_default="final")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture and its numbers.")] = Path("analysis"),
) -> None:
    """Attention dilution: the share l(i, r, N) of a token's attention on the r·N tokens around it (Figure 2a).

    Writes dilution.svg, .png, .csv and .json. The area under a curve is its one number, to be read
    beside that of equal weights, which is attention entirely diluted.

    Example: transnormer analyse dilution runs/t2 runs/vanilla runs/linear_elu --out analysis

    Example: transnormer analyse dilution run/final --text book.txt --length 256
    """
    folders = [model_folder(run, checkpoint) for run in runs]  # before torch is loaded, which takes seconds
    configs = [read_run_config(run, text) for run in runs]
    require_place_for(out)
    load_torch()
    from transnormer.analysis.dilution import RATIOS
    from transnormer.analysis.dilution_of_models import PROTOCOL, draw, measure, points
    from transnormer.analysis.figure_files import write_finding
    from transnormer.analysis.subject import chosen_length, load_backbone, model_config, texts_of_file, texts_of_run
    from transnormer.environment import describe_environment

    models = [model_config(folder) for folder in folders]
    # l depends on N: all are read in texts of the same length.
    tokens = min(chosen_length(model, config, length) for model, config in zip(models, configs, strict=True))
    rows = []
    for name, folder, config in zip(names_of(runs), folders, configs, strict=True):
        if text is not None:
            texts = texts_of_file(text, folder, tokens, windows)
        else:
            assert config is not None
            texts = texts_of_run(config, tokens, windows)
        print_note(f"{name}: {len(texts.sequences)} texts of {tokens:,} tokens")
        rows.append({"run": name, **measure(load_backbone(folder), texts)})
    _show(rows)
    print_text(PROTOCOL)
    if len({str(row.get("data", {}).get("digest", row.get("sha256"))) for row in rows}) > 1:
        print_note("the runs have read different texts: their own. Give --text FILE for one that all read")
    facts = {"analysis": "dilution", "protocol": PROTOCOL, "length": tokens, "ratios": list(RATIOS), "runs": rows}
    written = write_finding(out, "dilution", draw(rows), points(rows), {**facts, **describe_environment()})
    print_text(f"written: {', '.join(map(str, written))}")


def _show(rows: list[dict[str, Any]]) -> None:
    deepest = max(len(row["layers"]) for row in rows)
    shown = []
    for row in rows:
        layers = [f"{layer['area']:.3f} {layer['mixer']}{'±' * layer['signed']}" for layer in row["layers"]]
        areas = [f"{row[name]['area']:.3f}" for name in ("mean", "uniform")]
        shown.append((row["run"], *areas, *layers, *[""] * (deepest - len(layers))))
    print_table(["run", "mean area", "equal weights", *(f"layer {i + 1}" for i in range(deepest))], shown)
    if any(layer["signed"] for row in rows for layer in row["layers"]):
        print_text("±: has negative weights, taken by absolute value")
    if lost := max(layer["empty_rows"] for row in rows for layer in row["layers"]):
        print_text(f"up to {100 * lost:.1f} % of the rows of a layer had no weight at all, and are in no mean")


def read_run_config(run: Path, text: Path | str | None) -> Any:
    """The config of a run folder; None for a model folder, which has no data of its own and needs the text."""
    if isinstance(text, Path):
        from transnormer.data.excerpts import whole_file

        whole_file(text)
    if (run / "config.yaml").is_file():
        from transnormer.train.run_folder import RunFolder

        return RunFolder(run).read_config()
    if text is None:
        raise ConfigError(f"{run} is a model without data", "give --text FILE, or the run folder it came from")
    return None
