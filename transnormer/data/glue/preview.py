"""A look at some examples of a GLUE store: the text that a model reads, with its marks, and the label in words."""

from __future__ import annotations

from collections.abc import Iterator

from transnormer.data.example_source import Example
from transnormer.data.examples import ExampleStore
from transnormer.data.glue.source import is_labelled
from transnormer.data.glue.spec import spec_of
from transnormer.data.tokenizers import load_tokenizer


def as_text(store: ExampleStore, split: str, examples: list[Example]) -> Iterator[str]:
    """Each example in words."""
    assert store.tokenizer_path is not None
    tokenizer, labels = load_tokenizer(store.tokenizer_path), spec_of(store.task).labels
    for number, ((ids,), label) in enumerate(examples):
        word = f"label {labels[label]}" if is_labelled(split) else "no label"
        yield f"example {number}: {word}, {len(ids):,} tokens"
        yield tokenizer.decode(ids.tolist())
