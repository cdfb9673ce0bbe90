"""One measurement of the speed table: a method at a length, training or inference, in one execution.

Training is timed as `transnormer train` runs it: the same `TrainingStep` with its batches, schedule, clipping, AdamW.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transnormer.bench.flops import peak_flops, training_flops
from transnormer.bench.ops import GateFailed
from transnormer.bench.settings import SETTINGS
from transnormer.bench.speed_models import STEPS_AT_ONCE, FixedBatch, build_model, run_config
from transnormer.bench.timing import median_seconds, require_device
from transnormer.bench.tuning import tune_one_at_a_time
from transnormer.step.execution import CannotRun, Execution
from transnormer.step.training import TrainingStep
from transnormer.tasks.contract import Batch

OUT_OF_MEMORY = "out of memory"
KINDS = ("train", "inference")
_ALLOWED = {"cuda": 5e-2, "cpu": 1e-3}  # relative error; a GPU computes in bfloat16


@dataclass(frozen=True)
class Measurement:
    """What is measured: in which setting, which method, how long, training or inference, and how it is executed."""

    setting: str
    method: str
    length: int
    kind: str
    execution: Execution
    gradient_checkpointing: bool = False

    @property
    def device(self) -> torch.device:
        """Where it is measured."""
        return self.execution.device


class Training:
    """A training step that is ready to run, and what it is held against."""

    def __init__(self, wanted: Measurement) -> None:
        setting = SETTINGS[wanted.setting]
        self.wanted = wanted
        self.model = build_model(setting, wanted.method, wanted.length, wanted.device)
        self.feeds = FixedBatch(setting, wanted.length)
        config = run_config(setting, wanted.length, wanted.gradient_checkpointing)
        self.step = TrainingStep(self.model, self.feeds, config, wanted.execution)
        self.step.prepare()
        self.steps_at_once = STEPS_AT_ONCE if wanted.device.type == "cuda" else 1

    def run(self) -> object:
        """What is timed: so many steps as a run makes at once."""
        return self.step.advance(0, range(self.steps_at_once))

    def check(self) -> None:
        """The gate: the loss, and where a compiler made the backward pass the gradients, are those of eager PyTorch."""
        if self.wanted.execution.name == "eager":
            return
        feed = self._on_device()
        if self.wanted.execution.compiles:
            self._check_gradients(feed)
        with torch.no_grad(), self.wanted.execution.autocast():
            expected = self.feeds.loss_sum(self.model, feed).double() / self.feeds.targets(feed)
        (outcome,) = self.step.advance(0, [0])
        _require(abs(outcome.loss / float(expected) - 1), self.wanted, "eager PyTorch")

    def numbers(self) -> dict[str, Any]:
        """Steps per second, and for language models tokens per second and utilisation."""
        # Each call is several steps already, which ran before for the peak and the gate.
        rate = self.steps_at_once / median_seconds(self.run, self.wanted.device, warmup=1, repeats=3)
        found: dict[str, Any] = {"steps_per_second": rate}
        if self.feeds.is_language:
            tokens, device = self.feeds.tokens(self.feeds.batch), self.wanted.device
            flops = training_flops(self.model, self.model.config, tokens, self.wanted.length)
            limit = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
            found["tokens_per_second"] = tokens * rate
            found["flops_per_step"] = flops
            found["utilisation"] = None if flops is None or limit is None else flops * rate / limit
        return found

    def _check_gradients(self, feed: Batch) -> None:
        """Every parameter that counts gets a gradient as large as op by op.

        Sizes are compared, because dropout is another one in each run; what a compiler loses is lost whole. Where they
        differ, float32 is asked as well: in bfloat16 small gradients may be rounding for the most part (some of
        cosFormer's are, at 4,096 tokens), of which a compiler may do less.
        """
        found = self._gradient_norms(self.step.loss, feed)
        eager = self._gradient_norms(lambda feed: self.feeds.loss_sum(self.model, feed), feed)
        largest = max(eager.values())
        suspects = [
            name
            for name, size in eager.items()
            if size > 0.01 * largest and not size / 2 <= found.get(name, 0.0) <= size * 2
        ]
        if not suspects:
            return
        exact = self._gradient_norms(lambda feed: self.feeds.loss_sum(self.model, feed), feed, half=False)
        for name in suspects:
            least, most = sorted((eager[name], exact.get(name, 0.0)))
            if not least / 2 <= found.get(name, 0.0) <= most * 2:
                raise GateFailed(
                    f"{self.wanted.method}, train as {self.wanted.execution}: the gradient of {name} has norm "
                    f"{found.get(name, 0.0):.2e}, in eager PyTorch {eager[name]:.2e}, "
                    f"in float32 {exact.get(name, 0.0):.2e}"
                )

    def _gradient_norms(self, loss: Callable[[Batch], Tensor], feed: Batch, *, half: bool = True) -> dict[str, float]:
        named = dict(self.model.named_parameters())
        with torch.autocast(self.wanted.device.type, torch.bfloat16, enabled=half and self.wanted.execution.bf16):
            total = loss(feed) / self.feeds.targets(feed)
        gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        return {name: float(x.norm()) for name, x in zip(named, gradients, strict=True) if x is not None}

    def _on_device(self) -> Batch:
        return {name: values.to(self.wanted.device) for name, values in self.feeds.batch.items()}


class Inference:
    """Logits of a batch, ready to be computed, and what they are held against."""

    def __init__(self, wanted: Measurement) -> None:
        setting = SETTINGS[wanted.setting]
        self.wanted = wanted
        self.model = build_model(setting, wanted.method, wanted.length, wanted.device).eval()
        self.ids = FixedBatch(setting, wanted.length).batch["input_ids"].to(wanted.device)
        self._logits = wanted.execution.compile(lambda: self.model(input_ids=self.ids).logits)
        self.run = wanted.execution.prepare(self._forward)

    @torch.no_grad()
    def _forward(self) -> Tensor:
        with self.wanted.execution.autocast():
            return self._logits()

    @torch.no_grad()
    def check(self) -> None:
        """The gate of compilers and graphs: the logits are those of eager PyTorch."""
        if self.wanted.execution.name == "eager":
            return
        # A sequence of a language model will do: all logits once more would double the memory.
        some = slice(1) if self.model.config.causal else slice(None)
        with self.wanted.execution.autocast():
            expected = self.model(input_ids=self.ids[some]).logits.double()
        _require(_relative(self.run()[some].double(), expected), self.wanted, "eager PyTorch")

    def numbers(self) -> dict[str, Any]:
        """Steps per second."""
        return {"steps_per_second": 1 / median_seconds(self.run, self.wanted.device)}


# What this process has ready to be measured.
_prepared: dict[Measurement, Training | Inference] = {}


def prepare(wanted: Measurement) -> None:
    """Build and compile what `measure` will be asked for next, and keep it, with no more memory than it must hold."""
    require_device(wanted.device.type)  # this may be a process that has not been told yet
    if wanted.device.type == "cuda":
        tune_one_at_a_time()
    _prepared.clear()
    release(wanted.device)
    # The backward pass is compiled with the forward one, not while its activations wait: others need their memory.
    with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
        _prepared[wanted] = _make(wanted)
    if wanted.device.type == "cuda":
        torch.cuda.empty_cache()


def measure(wanted: Measurement) -> dict[str, Any]:
    """Steps per second and peak memory, and for the training of language models tokens per second and utilisation.

    Raises CannotRun where the step cannot be executed like that, or does not fit into memory.
    """
    require_device(wanted.device.type)
    made = _prepared.pop(wanted, None)
    _prepared.clear()
    try:
        if made is None:
            release(wanted.device)
            made = _make(wanted)
        peak = _peak_bytes(made, wanted.device)  # before the gate, which needs memory of its own
        made.check()
        return {"peak_bytes": peak, **made.numbers()}
    except torch.OutOfMemoryError:
        raise CannotRun(OUT_OF_MEMORY, spoilt=wanted.execution.name == "cuda_graph") from None
    finally:
        made = None
        release(wanted.device)


def release(device: torch.device) -> None:
    """Let go of what an earlier measurement left: graphs, compiled code, cached memory."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _make(wanted: Measurement) -> Training | Inference:
    return Training(wanted) if wanted.kind == "train" else Inference(wanted)


def _peak_bytes(made: Training | Inference, device: torch.device) -> int | None:
    """The most that was allocated since the model was built, its compilation and recording included, and in a run."""
    if device.type != "cuda":
        return None
    made.run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


@torch.no_grad()
def check_model(setting_name: str, method: str, execution: Execution) -> None:
    """The gate of a method: on a short input the model gives what plain PyTorch gives in float64."""
    setting = SETTINGS[setting_name]
    wanted = Measurement(setting_name, method, 256, "inference", execution)
    model = build_model(setting, method, wanted.length, execution.device).eval()
    ids = FixedBatch(setting, wanted.length).batch["input_ids"][:2].to(execution.device)
    expected = model.double()(input_ids=ids).logits  # a dtype that no kernel of ours takes
    with execution.autocast():
        logits = model.float()(input_ids=ids).logits
    _require(_relative(logits.double(), expected), wanted, "float64")


def parameters(setting_name: str, method: str, length: int) -> int:
    """The number of parameters of a method in a setting, without making them."""
    model = build_model(SETTINGS[setting_name], method, length, "meta")
    return sum(parameter.numel() for parameter in model.parameters())


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _require(error: float, wanted: Measurement, against: str) -> None:
    allowed = _ALLOWED[wanted.device.type]
    if not error <= allowed:
        raise GateFailed(
            f"{wanted.method}, {wanted.kind} as {wanted.execution}: relative error {error:.2e} against {against}, "
            f"allowed are {allowed:.0e}"
        )
