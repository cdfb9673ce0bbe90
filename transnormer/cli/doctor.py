"""`transnormer doctor`: what this machine will run, and what to do where something is amiss."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.errors import ConfigError

_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "tokenizers", "numpy", "pydantic", "typer")
_OPTIONAL = {"triton": "Triton kernels on CUDA", "tensorboard": "train.tensorboard=true"}
_LITTLE_SPACE = 5 * 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the report; `todo` is what to type where it is a problem."""

    subject: str
    detail: str
    todo: str = ""


def doctor() -> None:
    """Show what this machine will run, and what to do where something is amiss.

    Example: transnormer doctor
    """
    findings = [*_python(), *_packages(), *_torch(), *_disk()]
    print_table(["", "found", "to do"], [(item.subject, item.detail, item.todo) for item in findings])
    problems = sum(bool(item.todo) for item in findings)
    print_text(f"{problems} thing{'s' * (problems != 1)} to do, see the last column" if problems else "all is well")


def _python() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("platform", platform.platform())


def _packages() -> Iterator[Finding]:
    """Versions, compared with what transnormer was installed to require."""
    from packaging.requirements import Requirement

    try:
        required = {item.name: item.specifier for item in map(Requirement, requires("transnormer") or ())}
        yield Finding("transnormer", version("transnormer"))
    except PackageNotFoundError:
        required = {}
        yield Finding("transnormer", "runs from its source folder, not installed", "pip install -e .")
    for name in _PACKAGES:
        found = _version(name)
        wanted = required.get(name)
        todo = "" if found and (wanted is None or found in wanted) else f"pip install '{name}{wanted or ''}'"
        yield Finding(name, found or "not installed", todo)
    for name, purpose in _OPTIONAL.items():
        yield Finding(name, _version(name) or f"not installed (optional: {purpose})")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> Iterator[Finding]:
    """The device and the backend of each op, or why torch itself does not work."""
    try:
        load_torch("transnormer.ops.backend")
    except (ImportError, OSError) as error:
        yield Finding("torch", f"cannot be imported: {error}", "pip install --force-reinstall torch")
        return
    yield from _device()
    yield from _backends()


def _device() -> Iterator[Finding]:
    import torch

    yield Finding("cpu", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} of them")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            todo = "" if torch.cuda.is_bf16_supported() else "set train.precision=float32"
            name = torch.cuda.get_device_name(index)
            precision = "bf16" if not todo else "no bf16"
            yield Finding(f"cuda:{index}", f"{name}, {_gib(free)} of {_gib(total)} free, {precision}", todo)
    elif shutil.which("nvidia-smi"):
        todo = "install a CUDA build of torch: https://pytorch.org/get-started"
        yield Finding("cuda", f"a GPU is here, but torch {torch.__version__} cannot use it", todo)
    elif torch.backends.mps.is_available():
        yield Finding("mps", "an Apple GPU, which is not used: no step of ours has been tested on one; auto is cpu")
    else:
        yield Finding("cuda", "no GPU; train.device=auto is cpu, train.precision=auto is float32")


def _backends() -> Iterator[Finding]:
    import torch

    from transnormer.ops.backend import OPS, explain

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for op in OPS:
        try:
            choice = explain(op, device)
            yield Finding(f"ops.{op}", f"{choice.backend} on {device}: {choice.reason}")
        except ConfigError as error:
            yield Finding(f"ops.{op}", error.message, "unset TRANSNORMER_BACKEND, or set it to auto")


def _disk() -> Iterator[Finding]:
    from transnormer.data.cache import cache_root
    from transnormer.files import nearest_existing

    root = cache_root()
    stores = sorted(path for path in (root / "stores").glob("*") if path.is_dir())
    held = sum(file.stat().st_size for store in stores for file in store.rglob("*") if file.is_file())
    set_by = "TRANSNORMER_CACHE" if os.environ.get("TRANSNORMER_CACHE") else "set TRANSNORMER_CACHE to move it"
    existing = nearest_existing(root)
    writable = "" if os.access(existing, os.W_OK) else "set TRANSNORMER_CACHE to a folder you can write"
    yield Finding("data cache", f"{root}: {len(stores)} stores, {held / 2**20:.1f} MiB ({set_by})", writable)
    for subject, path in (("disk of the cache", existing), ("disk here", Path.cwd())):
        free = shutil.disk_usage(path).free
        yield Finding(subject, f"{_gib(free)} free at {path}", "" if free > _LITTLE_SPACE else "free some space")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
