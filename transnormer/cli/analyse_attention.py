"""`transnormer analyse attention`: the attention matrices of a model, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from transnormer.cli.analyse_dilution import names_of, read_run_config
from transnormer.cli.console import load_torch, print_text
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.errors import ConfigError
from transnormer.files import require_place_for

_LENGTH = 48  # tokens whose names can be read in the picture


def attention(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or with a text a model folder.")],
    prompt: Annotated[str | None, typer.Option(help="The text to look at.")] = None,
    text: Annotated[
        Path | None, typer.Option(help="A file with it.", show_default="the run's validation split")
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(help="A layer, from 1 (may be repeated).", show_default="all")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(help="A head, from 1 (may be repeated).", show_default="all")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of the text, from its start.", show_default=str(_LENGTH))
    ] = None,
    checkpoint: Annotated[Weights | None, typer.Option(help="Which weights of a run.", show_default="final")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture and its numbers.")] = Path("analysis"),
) -> None:
    """Attention maps: the matrices of layers and heads, with the tokens on the axes.

    Writes attention-RUN.svg, .png, .csv (every weight) and .json (with each layer's mean over heads).

    Example: transnormer analyse attention run --prompt "The devil is in the details." --layer 1 --layer 2
    """
    if prompt is not None and text is not None:
        raise ConfigError("--prompt and --text are two texts", "leave one of them out")
    folder = model_folder(run, checkpoint)  # before torch is loaded, which takes seconds
    config = read_run_config(run, text if prompt is None else prompt)
    require_place_for(out)
    load_torch()
    from transnormer.analysis import attention_maps
    from transnormer.analysis.figure_files import write_finding
    from transnormer.analysis.subject import (
        attentions,
        chosen_length,
        load_backbone,
        model_config,
        text_of_prompt,
        texts_of_file,
        texts_of_run,
    )
    from transnormer.environment import describe_environment

    model = model_config(folder)
    tokens = (
        min(_LENGTH, chosen_length(model, config, None)) if length is None else chosen_length(model, config, length)
    )
    layers = attention_maps.chosen("--layer", layer, model.num_hidden_layers)
    if prompt is not None:
        texts = text_of_prompt(prompt, folder, tokens)
    elif text is not None:
        texts = texts_of_file(text, folder, tokens, 1)
    else:
        assert config is not None
        texts = texts_of_run(config, tokens, 1)
    matrices = attentions(load_backbone(folder), texts.sequences[0])
    heads = attention_maps.chosen("--head", head, matrices[0].shape[1])
    names, mixers, label = texts.tokens(), model.mixers or [], names_of([run])[0]
    panels: dict[tuple[str, str], Any] = {}
    points, means = [], []
    for number in layers:
        weights, mixer = matrices[number - 1], mixers[number - 1]
        panels |= {(f"layer {number} ({mixer})", f"head {each}"): weights[0, each - 1] for each in heads}
        points += attention_maps.points(weights, number, heads, names)
        means.append({"layer": number, "mixer": mixer, "mean_share": attention_maps.mean_over_heads(weights)})
    facts = {"analysis": "attention", "run": label, "causal": model.causal, "tokens": names, **texts.facts}
    facts |= {"layers": means, **describe_environment()}
    written = write_finding(out, f"attention-{label}", attention_maps.draw(panels, names), points, facts)
    print_text(f"{len(layers)} layers, {len(heads)} heads, {len(names)} tokens; queries are rows, keys columns")
    print_text(f"written: {', '.join(map(str, written))}")
