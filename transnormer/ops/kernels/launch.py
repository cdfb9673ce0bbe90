"""What the Triton kernels share around a launch: when one is possible, and how tensors are brought into shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from transnormer.ops.autocast import matmul_dtype

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_FLOAT32_WIDTH, _FLOAT32_ROWS = 32, 64
_MOST_ROWS = 128  # of a tile
_MOST_SEQUENCES = 65_535  # CUDA's limit on the second dimension of a grid
_OLDEST_GPU = 80  # compute capability 8.0; for those before it Triton has no tensor cores, and tiles spill kilobytes
ANY_WIDTH = 2**31  # for kernels that scan over their columns in blocks, or check them otherwise


def kernel_op(name: str, *, mutates_args: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """`torch.library.custom_op` for a function whose first argument is a tensor, launching on that tensor's device.

    Triton launches on the current device and PyTorch guards only its own ops: a model on the second of two GPUs would
    have its kernels sent to the first.
    """

    def register(body: Callable[..., Any]) -> Any:
        @wraps(body)
        def on_the_device_of_its_tensors(tensor: Tensor, *others: Any) -> Any:
            with torch.cuda.device_of(tensor):
                return body(tensor, *others)

        return torch.library.custom_op(name, on_the_device_of_its_tensors, mutates_args=mutates_args)

    return register


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter, which is how they are tested on a CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@torch.compiler.assume_constant_result
def capability(device: torch.device) -> int:
    """The compute capability of a GPU, 90 for 9.0; of anything else, the least there is."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return _OLDEST_GPU
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def cannot_launch(device: str, q: Tensor | None, v: Tensor | None, max_head_dim: int) -> str | None:
    """Why no kernel can run on these tensors, or None. Without tensors only the machine is looked at."""
    if device != "cuda" and not interpreting():
        return f"tensors are on {device}; set TRITON_INTERPRET=1 before the start to interpret kernels on a CPU"
    for x in (q, v):
        if x is None:
            continue
        if (found := capability(x.device)) < _OLDEST_GPU:
            return f"the GPU has compute capability {found / 10}; kernels are for {_OLDEST_GPU / 10} and above"
        if x.dtype not in _DTYPES:
            return f"dtype {str(x.dtype).removeprefix('torch.')}; kernels take bfloat16, float16 and float32"
        if x.dim() == 4 and x.shape[0] > _MOST_SEQUENCES:
            return f"{x.shape[0]:,} sequences; one launch takes {_MOST_SEQUENCES:,}"
        if x.shape[-1] > max_head_dim:
            return f"head size {x.shape[-1]} is above {max_head_dim}"
    return None


def too_large_in_float32(*tensors: Tensor | None, rows: int = 64) -> str | None:
    """Why matrix products of these float32 tensors [..., D], in tiles of so many rows, are left to PyTorch, or None.

    Exact float32 products are unrolled into single operations: larger tiles spill kilobytes a thread and take minutes
    to compile (Triton 3.6, sm_90).
    """
    widths = [x.shape[-1] for x in tensors if x is not None and matmul_dtype(x) == torch.float32]
    if interpreting() or not widths or (max(widths) <= _FLOAT32_WIDTH and rows <= _FLOAT32_ROWS):
        return None
    return f"float32 tiles of {rows} x {max(widths)} are too large for registers; use bfloat16 or autocast"


def power_of_two(size: int) -> int:
    """The tile size for `size` elements: a power of two, at least 16, the smallest side of a matrix product."""
    return max(16, 1 << (size - 1).bit_length())


def unit_stride(x: Tensor) -> Tensor:
    """Kernels take any strides but the last, which must be one."""
    return x if x.stride(-1) == 1 else x.contiguous()


def near_rows(x: Tensor) -> Tensor:
    """[B, T, ...] with a last stride of one, and rows so near each other that offsets inside a tile have 32 bits."""
    return unit_stride(x) if x.stride(1) * _MOST_ROWS < 2**31 else x.contiguous()


def empty_gradients(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Contiguous tensors for dq, dk and dv of an attention, k being as q."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, q, v))
    return dq, dk, dv


def empty_square_sums(v: Tensor, wanted: bool) -> Tensor:
    """[B, T, H] with time innermost, as a program writes it; empty if not wanted: an op returns tensors only."""
    if not wanted:
        return torch.empty(0, dtype=torch.float32, device=v.device)
    return torch.empty((v.shape[0], v.shape[2], v.shape[1]), dtype=torch.float32, device=v.device).mT


def as_mask_integers(mask: Tensor | None) -> Tensor | None:
    """A mask [B, T] as contiguous integers of 16 bits.

    Of bytes Triton (3.6, 3.7.1) concludes that what they mask has 8 bits: then its products of 16 columns take operands
    from the wrong threads, wherever they are not those of Hopper's warp groups.
    """
    return None if mask is None else (mask != 0).to(torch.int16).contiguous()
