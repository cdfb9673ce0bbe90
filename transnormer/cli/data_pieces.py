"""`transnormer data split` and `transnormer data join`: a store through a limit on file sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import print_text
from transnormer.errors import ConfigError, command

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def split(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A folder that `transnormer data prepare` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder of pieces to write; must be new or empty.")],
    size: Annotated[str, typer.Option(help="Of a piece at most: a number, with KB, MB, GB, KiB, MiB or GiB.")] = "50MB",
    xz: Annotated[bool, typer.Option("--xz", help="Compress each piece; slow.")] = False,
) -> None:
    """Write a store in pieces of bounded size, each with its checksum.

    `transnormer data verify` says which are damaged, `transnormer data join` puts them together.

    Example: transnormer data split store --size 50MB --out pieces
    """
    most = bytes_in(size)
    from transnormer.data.store_pieces import split_store

    count = split_store(store, out, most, xz)
    print_text(f"{count:,} pieces of at most {most:,} bytes are in {out}")
    print_text(f"use them: {command('data', 'join', out, '--out', 'store')}")


def join(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `transnormer data split` wrote.")],
    out: Annotated[Path, typer.Option(help="The store to write; must be new or empty.")],
) -> None:
    """Put a store together from its pieces.

    Example: transnormer data join pieces --out store
    """
    from transnormer.data.store_pieces import join_pieces

    join_pieces(folder, out)
    print_text(f"{out} is whole: every file has its recorded size and sha256")


def bytes_in(size: str) -> int:
    """50MB, 1.5 GiB or 50000000 as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", size.strip().lower())
    if found is None or found.group(2) not in _UNITS:
        raise ConfigError(f"--size '{size}' is no size", hint="write it as 50MB, 1.5GiB or 50000000")
    return int(float(found.group(1)) * _UNITS[found.group(2)])
