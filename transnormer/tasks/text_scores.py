"""Scores of a causal language model per token, per word and per byte of the text, and what they were divided by."""

from __future__ import annotations

import math

from transnormer.data.store import SplitInfo
from transnormer.tasks.token_windows import perplexity, token_scores


def with_text(sums: dict[str, float], scorable: SplitInfo) -> dict[str, float]:
    """The sums with the words and bytes that their targets stand for, of a stream with so many that can be scored.

    Exact where all were; of a part of them, their share of words and bytes.
    """
    share = sums["targets"] / scorable.tokens
    return {**sums, "bytes": scorable.bytes * share, "words": scorable.words * share}


def text_scores(sums: dict[str, float]) -> dict[str, float]:
    """Per token, and where the text is known, per word and per byte."""
    scores = token_scores(sums)
    if sums["words"]:
        scores["word_perplexity"] = perplexity(sums["loss"], sums["words"])
    if sums["bytes"]:
        scores["bits_per_byte"] = sums["loss"] / math.log(2) / sums["bytes"]
    return scores


def text_counts(sums: dict[str, float], scorable: SplitInfo) -> dict[str, int | bool]:
    """Tokens, words and bytes that were scored; `estimated` where words and bytes are a share of the whole text's."""
    counts = {name: round(sums[key]) for name, key in (("tokens", "targets"), ("words", "words"), ("bytes", "bytes"))}
    return {**counts, "estimated": counts["tokens"] != scorable.tokens}
