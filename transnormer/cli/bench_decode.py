"""`transnormer bench decode`: tokens per second over the context."""

from __future__ import annotations

from typing import Annotated

import typer

from transnormer.cli.bench import Device, Out, Where
from transnormer.cli.console import load_torch, print_note, print_text
from transnormer.cli.lists import parse_lengths

# Sizes that a laptop finishes in a minute or two, and those of a GPU.
_CONTEXTS = {Device.cpu: "1k,4k,16k", Device.cuda: "1k,4k,32k,128k"}
_BATCHES = {Device.cpu: "1,4", Device.cuda: "1,16,64,256"}


def decode(
    device: Where = Device.cpu,
    preset: Annotated[str, typer.Option(help="The model.")] = "t2-lm",
    against: Annotated[str, typer.Option(help="The model it is compared with.")] = "vanilla-lm",
    contexts: Annotated[
        str | None, typer.Option(help="Tokens in the state, k = 1024.", show_default="1k to 16k, on a GPU to 128k")
    ] = None,
    batches: Annotated[
        str | None, typer.Option(help="Sequences decoded together.", show_default="1,4, on a GPU 1 to 256")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="torch.compile the step on a GPU.")] = False,
    out: Out = None,
) -> None:
    """Tokens per second and bytes of state while decoding, over the context, beside a model whose cache grows.

    Example: transnormer bench decode --device cuda --out results/bench/decode.json
    """
    from transnormer.models.presets import require_preset

    for name in (preset, against):
        require_preset(name)
    lengths = parse_lengths(contexts or _CONTEXTS[device], "--contexts")
    sizes = parse_lengths(batches or _BATCHES[device], "--batches")
    load_torch()  # all names were right
    from transnormer.bench.decode import dtype_on, measure_decode
    from transnormer.bench.decode_table import growth, markdown, ratios
    from transnormer.bench.record import recorded, write_record
    from transnormer.bench.timing import require_device

    where = require_device(device.value)
    settings = {
        "preset": preset,
        "against": against,
        "device": device.value,
        "dtype": str(dtype_on(where)).removeprefix("torch."),
        "step": ("compiled CUDA graph" if compiled else "CUDA graph") if device is Device.cuda else "eager",
        "contexts": lengths,
        "batches": sizes,
    }
    measured = measure_decode([preset, against], lengths, sizes, where, compiled=compiled)
    rows = []
    for row in recorded(measured, out, "decode", settings):
        rows.append(row)
        done = f"{row['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in row else "out of memory"
        print_note(f"{row['preset']}  batch={row['batch']}  context={row['context']:,}  {done}")
    table = markdown(rows)
    print_text(table)
    if out:
        print_text(write_record(out, "decode", settings, rows, table, ratios=ratios(rows), growth=growth(rows)))
