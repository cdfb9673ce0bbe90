"""safetensors files of tensors that come one by one, of which no process ever holds more than one whole.

The library's own `save_file` wants all of them at once. The format is a header of JSON, then the tensors' bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def in_file_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Wide dtypes first, so that every tensor begins at a multiple of its width."""
    return dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))


def write_streamed(
    path: Path, tensors: Mapping[str, Tensor], values: Iterator[Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `values`, one for each of the tensors in their order, of which only shapes and dtypes are looked at."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in tensors:
            file.write(next(values).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def read_streamed(path: Path, take: Callable[[str, Tensor], None]) -> None:
    """Give every tensor of a file to `take`, one at a time."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            take(name, file.get_tensor(name))
