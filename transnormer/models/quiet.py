"""transformers without its progress bars, which break into our own output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Load or save inside, and nothing is drawn; the caller's setting is back afterwards."""
    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bar:
            logging.enable_progress_bar()
