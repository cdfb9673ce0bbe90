"""manifest.json of an example store: labelled sequences, readable without this package.

    {
      "format": "transnormer-example-store", "version": 1, "digest": "9f0c...",       as in `manifest`
      "task": "lra/listops",           what the examples are for
      "dtype": "uint8",                of the ids: flat little-endian uint8, or uint16 above 256 ids
      "vocab_size": 16,                every id is smaller
      "num_labels": 10,                so is every label, than this
      "max_length": 2000,              no sequence is longer
      "sequences": 1,                  per example; 2 for pairs
      "splits": {
        "train": {
          "examples": 96000, "tokens": 100000000,
          "ids": [shards],             all sequences one after the other (of a pair, the first, then the second)
          "lengths": [shards],         of each sequence, in the same order, uint32
          "labels": [shards]           of each example, uint8
        }
      },
      "tokenizer": [files],            as in a token store; left out where ids were not made of text
      "meta": {...}                    how it was made: generator and seed, or source files and their hashes; split rule
    }

Like a token store, it has no date and no machine in it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from transnormer.data.manifest import (
    AnyManifest,
    RecordedFile,
    Shard,
    Strict,
    TokenizerFile,
    shard_files,
    tokenizer_files,
)

LENGTHS, LABELS = np.dtype("<u4"), np.dtype("u1")
MAX_LABELS = 2**8


class ExampleShards(Strict):
    """One split: its counts and its three arrays."""

    examples: int = Field(ge=0)
    tokens: int = Field(ge=0)
    ids: list[Shard]
    lengths: list[Shard]
    labels: list[Shard]


class ExampleManifest(AnyManifest):
    """The whole file."""

    kind: ClassVar[str] = "store of examples"

    format: Literal["transnormer-example-store"] = "transnormer-example-store"
    task: str
    dtype: Literal["uint8", "uint16"]
    vocab_size: int = Field(gt=0, le=2**16)
    num_labels: int = Field(gt=0, le=MAX_LABELS)
    max_length: int = Field(gt=0)
    sequences: Literal[1, 2]
    splits: dict[str, ExampleShards]
    tokenizer: list[TokenizerFile] = Field(default_factory=list)
    meta: dict[str, Any]

    @model_serializer(mode="wrap")
    def _without_no_tokenizer(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Stores that were written before there was one keep their digest."""
        return {name: value for name, value in dump(self).items() if name != "tokenizer" or value}

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")

    def check(self) -> str | None:
        for name, split in self.splits.items():
            expected = {
                "ids": split.tokens,
                "lengths": split.examples * self.sequences,
                "labels": split.examples,
            }
            for array, entries in expected.items():
                if sum(shard.tokens for shard in getattr(split, array)) != entries:
                    return f"splits.{name}.{array} are not {entries:,} in all"
        return None

    def files(self) -> list[RecordedFile]:
        arrays = [
            file
            for split in self.splits.values()
            for shards, dtype in ((split.ids, self.numpy_dtype), (split.lengths, LENGTHS), (split.labels, LABELS))
            for file in shard_files(shards, dtype)
        ]
        return arrays + tokenizer_files(self.tokenizer)


def ids_dtype(vocab_size: int) -> Literal["uint8", "uint16"]:
    """The narrowest dtype that holds every id."""
    return "uint8" if vocab_size <= 2**8 else "uint16"
