"""Steps that made no update, below a table whose runs go on after them."""

from __future__ import annotations

from collections.abc import Sequence

from transnormer.experiments.record import Record


def skipped_in_words(records: Sequence[Record]) -> list[str]:
    """Of each run that had any, how many; nothing where none had."""
    counts = {record.name: record.gradient_norm.nonfinite for record in records if record.gradient_norm}
    named = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return [f"Steps without an update, for their gradient was not finite: {named}."] if named else []
