"""Compile the kernels for an H200 (sm_90) where there is no GPU: python tests/ops/compile_for_hopper.py

For others by capability and bytes of shared memory that a program may take: ... compile_for_hopper.py 89 101376.
With --attention or --rest before them only those kernels, each of them at every size, but not with every option there.
The interpreter runs kernels that the compiler refuses, and says nothing about registers. Here every kernel is built by
Triton's compiler and launched into nothing; a line for each says what it takes of a multiprocessor. A product that the
compiler is known to lay out wrongly is an error.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel

from transnormer.ops.decode_step import kernel as decode
from transnormer.ops.diag_attention import kernel as diag
from transnormer.ops.feed_forward import kernel as glu
from transnormer.ops.feed_forward import kernel as mlp
from transnormer.ops.kernels import shared_memory
from transnormer.ops.linear_cross_entropy import kernel as cross_entropy
from transnormer.ops.norm_attention import kernel as norm
from transnormer.ops.packed import PackedBounds
from transnormer.ops.random_features import kernel as features
from transnormer.ops.rms_norm import kernel as rms
from transnormer.ops.rotate import kernel as rotation
from transnormer.ops.rotated_attention import kernel as packed
from transnormer.ops.skinny_linear import kernel as skinny_linear

SHARED_MEMORY = 232_448
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class NoDevice:
    """A driver of Triton's whose device takes every kernel and runs none."""

    def __init__(self, capability: int = 90, most_bytes: int = SHARED_MEMORY) -> None:
        self.capability = capability
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": most_bytes, "multiprocessor_count": 132},
            load_binary=lambda name, kernel, shared, device: (0, 0, 0, 0, 1024),
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def compiled(run: Callable[[], None]) -> list[dict[str, Any]]:
    """What a piece of code launches for the first time: name, registers, bytes of spills and of shared memory."""
    kernels: list[CompiledKernel] = []
    load = CompiledKernel._init_handles

    def note(kernel: CompiledKernel) -> None:
        if kernel.module is None:
            kernels.append(kernel)
        load(kernel)

    CompiledKernel._init_handles = note
    try:
        run()
    finally:
        CompiledKernel._init_handles = load
    for kernel in kernels:
        check_products(kernel.metadata.name, kernel.asm["ttgir"])
    return [
        {"kernel": kernel.metadata.name, "shared": kernel.metadata.shared, **_resources(kernel.asm["cubin"])}
        for kernel in kernels
    ]


def check_products(kernel: str, ttgir: str) -> None:
    """Operands in registers: four threads share a row, each with so many columns at once, and must have any."""
    for columns, together in re.findall(r"tt\.dot .* : tensor<\d+x(\d+)x\w+, #ttg\.dot_op<.*?kWidth = (\d+)", ttgir):
        assert 4 * int(together) <= int(columns), f"{kernel}: products of {columns} columns, {together} a thread"


def _resources(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    number = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", found)}
    return {"registers": number["REG"], "spilled": number["STACK"] + number["LOCAL"]}


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def differentiated(*results: Tensor) -> None:
    sum((x.float().sum() for x in results if x.requires_grad), torch.zeros(())).backward()


Cases = Iterator[tuple[str, Callable[[], None]]]


def attention_cases(every: bool) -> Cases:
    """Both attentions, in the shapes and with the options that the models use, and some at the edges."""
    for shape in ((64, 512, 8, 64), (1, 4096, 8, 64), (4, 512, 2, 32), (2, 512, 4, 128), (2, 1, 2, 96)):
        # The paper's heads of 64: without options at once, with all of them in segments, which only causal ones scan.
        at_once, in_segments = shape[0] == 64, shape[1] == 4096
        for causal, everything in product((True, False), (False, True)):
            if not every and (everything == at_once or (in_segments and not causal)):
                continue

            def run_norm(shape=shape, causal=causal, everything=everything):
                q, k, v = tensors(shape, shape, shape)
                batch, length, heads, d = shape
                mask = torch.ones(batch, length) if everything else None
                state = tensors((batch, heads, d, d), dtype=torch.float32)[0] if everything else None
                options = {"causal": causal, "feature_map": "1+elu", "mask": mask, "bounds": None, "state": state}
                call = partial(norm.norm_attention, q, k, v, return_state=True, **options)
                differentiated(*call(square_sums=False)[:2])
                if everything:
                    with torch.no_grad():
                        call(square_sums=True)

            options = " with mask, state and squares" if everything else ""
            yield f"norm {'causal' if causal else 'full'} {'x'.join(map(str, shape))}{options}", run_norm
    for shape, causal in product(((1, 4096, 8, 64), (1, 4096, 4, 128)), (True, False)):

        def run_packed(shape=shape, causal=causal):
            q, k, v = tensors(shape, shape, shape)
            (state,) = tensors((64, shape[2], shape[3], shape[3]), dtype=torch.float32)
            call = partial(
                norm.norm_attention,
                q,
                k,
                v,
                causal=causal,
                feature_map="1+elu",
                mask=None,
                state=state,
                return_state=True,
            )
            for longest in (None, 64) if causal else (None,):  # cut, and known to need no cut
                bounds = PackedBounds(torch.arange(0, 4097, 64), 4096, longest=longest)
                differentiated(*call(bounds=bounds, square_sums=False)[:2])

        yield f"norm packed {'causal' if causal else 'full'} {'x'.join(map(str, shape))}", run_packed

    def run_packed_diag():
        q, k, v = tensors(*((1, 512, 4, 64),) * 3)
        call = {"causal": True, "block_size": 64, "kind": "softmax", "mask": None, "dropout_p": 0.0}
        bounds = PackedBounds(torch.tensor([0, 100, 512]), 512)
        differentiated(diag.diag_attention(q, k, v, **call, bounds=bounds, square_sums=False)[0])

    yield "diag packed", run_packed_diag
    alike = ((64, 64), (32, 64), (128, 64), (48, 20), (64, 128), (16, 32), (16, 16), (128, 128), (256, 64))
    variants = (
        ("softmax", True, False, 0.0, False),
        ("softmax", False, True, 0.1, False),
        ("rela", True, False, 0.0, True),
    )
    sizes = (*((d, d, block) for d, block in alike), (128, 16, 128), (32, 256, 64))
    for number, (d, e, block) in enumerate(sizes):
        chosen = variants if every or number == 0 else variants[number % 3 :][:1]
        for kind, causal, masked, dropout, squared in chosen:
            options = {
                "kind": kind,
                "causal": causal,
                "block_size": block,
                "dropout_p": dropout,
                "bounds": None,
            }

            def run_diag(d=d, e=e, masked=masked, squared=squared, options=options):
                q, k, v = tensors(*((2, 512, 4, size) for size in (d, d, e)))
                mask = torch.ones(2, 512) if masked else None
                if diag.why_not(device="cuda", q=q, v=v, mask=mask, block_size=options["block_size"]) is None:
                    differentiated(diag.diag_attention(q, k, v, mask=mask, **options, square_sums=False)[0])
                    if squared:
                        with torch.no_grad():
                            diag.diag_attention(q, k, v, mask=mask, **options, square_sums=True)

            yield f"diag d={d} e={e} masked={masked} {options}", run_diag


def rest_cases(every: bool) -> Cases:
    """Every other kernel, likewise."""
    for gain in (True, False):

        def run_rms(gain=gain):
            (x,) = tensors((64, 512), dtype=torch.float32)
            weight = tensors((512,), dtype=torch.float32)[0] if gain else None
            differentiated(rms.rms_norm(x, weight, 1e-6, torch.bfloat16))

        yield f"rms gain={gain}", run_rms
    for d, count, scope, everything in (
        (32, 128, "token", False),
        (32, 128, "sequence", True),
        (128, 256, "none", True),
    ):

        def run_features(d=d, count=count, scope=scope, everything=everything):
            (x,), weight = tensors((4, 512, 2, d)), torch.zeros(count, d)
            offset, mask = (torch.zeros(count), torch.ones(4, 512)) if everything else (None, None)
            if features.why_not(device="cuda", x=x, weight=weight) is None:
                differentiated(features.random_features(x, weight, 0.5, 1e-4, scope, offset, mask))

        yield f"features d={d} {count} {scope} mask and offset={everything}", run_features
    for d, phi in ((64, "1+elu"), (32, "identity")):

        def run_rotation(d=d, phi=phi):
            q, k = tensors((4, 512, 4, d), (4, 512, 4, d))
            inverse_frequencies, reflection = tensors((d // 2,), (d,), dtype=torch.float32)
            rotated = rotation.rotate(
                q, k, torch.arange(512), inverse_frequencies, feature_map=phi, reflection=reflection.detach()
            )
            differentiated(*rotated)

        yield f"rotate d={d} {phi}", run_rotation
    for number, (d, kind, everything) in enumerate(
        product((16, 24, 64, 128), ("norm", "softmax", "rela"), (False, True))
    ):
        if not every and number % 4 not in (0, 3):  # with all options or with none, in turn
            continue

        def run_rotated(d=d, kind=kind, everything=everything):
            (qkv,) = (x.detach() for x in tensors((20, 1024, 3, 8, d)))
            reflection, mask = (torch.zeros(d), torch.ones(20, 1024)) if everything else (None, None)
            options = {"block_size": 32 if d == 16 else 64, "dropout_p": 0.0, "square_sums": everything, "mask": mask}
            options |= {"bounds": None}
            phi = "1+elu" if kind == "norm" else "identity"
            with torch.no_grad():
                packed.rotated_attention(
                    qkv, torch.arange(1024), torch.zeros(d // 2), kind=kind, causal=kind == "softmax", feature_map=phi,
                    reflection=reflection, **options,
                )  # fmt: skip

        yield f"rotated d={d} {kind} mask, reflection and squares={everything}", run_rotated
    for d, slots, rotated in ((64, 64, True), (128, 128, False), (20, 20, True)):

        def run_decode(d=d, slots=slots, rotated=rotated):
            q, k, v, reflection, inverse_frequencies = (
                x.detach() for x in tensors(*[(2, 1, 8, d)] * 3, (d,), (d // 2,))
            )
            rotations = (inverse_frequencies, reflection) if rotated else (None, None)
            positions, memory = torch.zeros(2, dtype=torch.long), torch.zeros(2, 8, d, d)
            decode.norm_decode_step(q, k, v, memory, positions, *rotations, "1+elu")
            keys, values = (torch.zeros(2, 8, slots, d, dtype=torch.bfloat16).transpose(1, 2) for _ in "kv")
            decode.diag_decode_step(q, k, v, keys, values, positions, *rotations, "softmax")

        yield f"decode d={d} slots={slots} rotated={rotated}", run_decode
    for rows in (1, 16, 32, 64) if every else (1, 32, 64):

        def run_skinny(rows=rows):
            x, *weights = (tensor.detach() for tensor in tensors((rows, 512), *[(1365, 512)] * 3))
            biases = [weight[:, 0].contiguous() for weight in weights]
            skinny_linear.linears(x, weights, biases)
            skinny_linear.gated(x, weights[0], biases[0], weights[1], biases[1], "silu")

        yield f"skinny {rows}", run_skinny
    for width, size in ((1408, 64), (96, 64), (85, 50), (96, 128)):

        def run_glu(width=width, size=size):
            inputs = tensors((256, size), (2 * width, size), (2 * width,), (size, width))
            differentiated(glu.glu(*inputs, "silu"))
            with torch.no_grad():
                glu.glu(*inputs, "silu")

        yield f"glu {width} of {size}", run_glu

    def run_mlp():
        differentiated(mlp.mlp(*tensors((256, 64), (128, 64), (128,), (64, 128), (64,)), "gelu"))

    yield "mlp", run_mlp

    def run_cross_entropy():
        logits = torch.zeros(16, 50_304, dtype=torch.bfloat16)
        targets, losses = torch.zeros(16, dtype=torch.long), torch.zeros(16)
        hits = torch.empty(len(logits), dtype=torch.int32)
        for gradient in (False, True):
            cross_entropy.score_rows(logits, None, targets, losses, hits, -100, logits.shape[1] - 47, gradient)

    yield "cross-entropy", run_cross_entropy


def main(cases: Cases, capability: int = 90, most_bytes: int = SHARED_MEMORY) -> None:
    triton.runtime.driver.set_active(NoDevice(capability, most_bytes))
    shared_memory.MOST = most_bytes
    diag.capability = lambda device: capability
    for name, run in cases:
        for row in compiled(run):
            print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    some = {"--attention": attention_cases, "--rest": rest_cases}
    if sys.argv[1:] and sys.argv[1] in some:
        main(some[sys.argv[1]](every=False), *map(int, sys.argv[2:]))
    else:
        main(chain(attention_cases(every=True), rest_cases(every=True)), *map(int, sys.argv[1:]))
