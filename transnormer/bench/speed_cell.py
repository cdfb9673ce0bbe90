"""One measurement of the speed table: a method at a length, training or inference, run in one way."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from transnormer.bench.flops import peak_flops, training_flops
from transnormer.bench.modes import EAGER, CannotRun, Way, ready, warm_up
from transnormer.bench.ops import GateFailed
from transnormer.bench.speed_shell import SETTINGS, build_model, make_batch
from transnormer.bench.timing import median_seconds, peak_bytes, require_device
from transnormer.bench.tuning import tune_one_at_a_time
from transnormer.models.backbone import TransNormerPreTrainedModel

OUT_OF_MEMORY = "out of memory"
KINDS = ("train", "inference")
_ALLOWED = {"cuda": 5e-2, "cpu": 1e-3}  # relative error; a GPU computes in bfloat16


# A model, its batch, and a step that has run.
Warm = tuple[TransNormerPreTrainedModel, dict[str, Tensor], Callable[[], Tensor]]


@dataclass(frozen=True)
class Cell:
    """What is measured: in which shell and where, which method, how long, training or inference, and how it is run."""

    setting: str
    device: torch.device
    method: str
    length: int
    kind: str
    way: Way = EAGER


# The cell that this process has ready to be measured.
_prepared: dict[Cell, Warm] = {}


def prepare_cell(cell: Cell) -> None:
    """Build and compile what `measure_cell` will be asked for next, and keep it."""
    require_device(cell.device.type)  # this may be a process that has not been told yet
    if cell.device.type == "cuda":
        tune_one_at_a_time()
    _prepared.clear()
    release(cell.device)
    _prepared[cell] = _warm(cell)


def measure_cell(cell: Cell) -> dict[str, Any]:
    """Steps per second and peak memory, and for the training of language models tokens per second and utilisation.

    Raises CannotRun where the step cannot be run in that way, or does not fit into memory.
    """
    require_device(cell.device.type)
    warm = _prepared.pop(cell, None)
    _prepared.clear()
    try:
        if warm is None:
            release(cell.device)
            warm = _warm(cell)
        return _measure(cell, *warm)
    except torch.OutOfMemoryError:
        raise CannotRun(OUT_OF_MEMORY, spoilt=cell.way.mode == "graph") from None
    finally:
        warm = None
        release(cell.device)


def release(device: torch.device) -> None:
    """Let go of what an earlier measurement left: graphs, compiled code, cached memory."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _warm(cell: Cell) -> Warm:
    """The model, its batch, and a step that has run."""
    setting = SETTINGS[cell.setting]
    model = build_model(setting, cell.method, cell.length).to(cell.device)
    batch = make_batch(setting, cell.length, cell.device)
    if cell.way.compiled:
        model.compile(fullgraph=True, dynamic=False)
    if cell.kind == "train":
        step = _train_step(model, batch, in_graph=cell.way.mode == "graph")
    else:
        step = _inference_step(model, batch)
    warm_up(step, cell.way)
    return model, batch, step


def _measure(
    cell: Cell, model: TransNormerPreTrainedModel, batch: dict[str, Tensor], step: Callable[[], Tensor]
) -> dict[str, Any]:
    training = cell.kind == "train"
    peak = peak_bytes(step, cell.device)
    run = ready(step, cell.way)
    if cell.way != EAGER:
        _check_run(cell, model, batch, run)
    if training and cell.way.compiled:
        _check_gradients(cell, model, batch)
    rate = 1 / median_seconds(run, cell.device)
    numbers: dict[str, Any] = {"peak_bytes": peak, "steps_per_second": rate}
    if training and "targets" in batch:
        tokens = batch["targets"].numel()
        numbers["tokens_per_second"] = tokens * rate
        flops = training_flops(model, model.config, tokens, cell.length)
        limit = peak_flops(torch.cuda.get_device_name(cell.device)) if cell.device.type == "cuda" else None
        numbers["flops_per_step"] = flops
        numbers["utilisation"] = None if flops is None or limit is None else flops * rate / limit
    return numbers


def _autocast(device: torch.device, *, half: bool = True) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=half and device.type == "cuda")


def _loss(call: Callable[..., Any], batch: dict[str, Tensor], *, half: bool = True) -> Tensor:
    """The mean loss, from what training uses: language models give the sum over their targets, and no logits."""
    with _autocast(batch["input_ids"].device, half=half):
        loss = call(**batch).loss
    return loss / batch["targets"].numel() if "targets" in batch else loss


def _train_step(model: nn.Module, batch: dict[str, Tensor], *, in_graph: bool) -> Callable[[], Tensor]:
    model.train()
    on_gpu = batch["input_ids"].device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu, capturable=in_graph)

    def step() -> Tensor:
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _inference_step(model: nn.Module, batch: dict[str, Tensor]) -> Callable[[], Tensor]:
    model.eval()
    ids = batch["input_ids"]

    @torch.no_grad()
    def step() -> Tensor:
        with _autocast(ids.device):
            return model(input_ids=ids).logits

    return step


@torch.no_grad()
def _check_run(cell: Cell, model: nn.Module, batch: dict[str, Tensor], run: Callable[[], Tensor]) -> None:
    """The gate of compilers and graphs: what is timed gives what the model gives op by op."""
    # `forward` passes by the compiled code.
    if cell.kind == "train":
        expected = _loss(model.forward, batch).double()
        with torch.enable_grad():
            found = run().double()
    else:
        # A sequence of a language model will do: all logits once more would double the memory.
        some = slice(1) if "targets" in batch else slice(None)
        with _autocast(cell.device):
            expected = model.forward(input_ids=batch["input_ids"][some]).logits.double()
        found = run()[some].double()
    error = float((found - expected).norm() / expected.norm())
    _require(error, cell.device, f"{cell.method}, {cell.kind} as {cell.way}", "eager PyTorch")


def _check_gradients(cell: Cell, model: nn.Module, batch: dict[str, Tensor]) -> None:
    """The gate of compiled backward passes: every parameter that counts gets a gradient as large as op by op.

    Sizes are compared, because dropout is another one in each run; what a compiler loses is lost whole. Where they
    differ, float32 is asked as well: in bfloat16 small gradients may be rounding for the most part (some of cosFormer's
    are, at 4,096 tokens), of which a compiler may do less.
    """
    found = _gradient_norms(model, model, batch)
    eager = _gradient_norms(model.forward, model, batch)
    largest = max(eager.values())
    suspects = [
        name
        for name, size in eager.items()
        if size > 0.01 * largest and not size / 2 <= found.get(name, 0.0) <= size * 2
    ]
    if not suspects:
        return
    exact = _gradient_norms(model.forward, model, batch, half=False)
    for name in suspects:
        least, most = sorted((eager[name], exact.get(name, 0.0)))
        if not least / 2 <= found.get(name, 0.0) <= most * 2:
            raise GateFailed(
                f"{cell.method}, train as {cell.way}: the gradient of {name} has norm {found.get(name, 0.0):.2e}, "
                f"in eager PyTorch {eager[name]:.2e}, in float32 {exact.get(name, 0.0):.2e}"
            )


def _gradient_norms(
    call: Callable[..., Any], model: nn.Module, batch: dict[str, Tensor], *, half: bool = True
) -> dict[str, float]:
    _loss(call, batch, half=half).backward()
    norms = {name: float(x.grad.norm()) for name, x in model.named_parameters() if x.grad is not None}
    model.zero_grad(set_to_none=True)
    return norms


@torch.no_grad()
def check_model(setting_name: str, method: str, device: torch.device) -> None:
    """The gate of a method: on a short input the model gives what it gives in float64 on the CPU."""
    setting = SETTINGS[setting_name]
    model = build_model(setting, method, 256).eval()
    ids = make_batch(setting, 256, torch.device("cpu"))["input_ids"][:2]
    expected = model.double()(input_ids=ids).logits
    with _autocast(device):
        logits = model.float().to(device)(input_ids=ids.to(device)).logits
    error = float((logits.double().cpu() - expected).norm() / expected.norm())
    _require(error, device, method, "float64")


def parameters(setting_name: str, method: str, length: int) -> int:
    """The number of parameters of a method in a setting, without making them."""
    with torch.device("meta"):
        model = build_model(SETTINGS[setting_name], method, length)
    return sum(parameter.numel() for parameter in model.parameters())


def _require(error: float, device: torch.device, what: str, against: str) -> None:
    allowed = _ALLOWED[device.type]
    if not error <= allowed:
        raise GateFailed(f"{what}: relative error {error:.2e} against {against}, allowed are {allowed:.0e}")
