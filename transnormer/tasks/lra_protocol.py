"""The two protocols of the Long-Range Arena tasks: honest by default, or with the quirks of the published numbers.

`skyformer`   Skyformer's training set-up (the recipes have it), honest data: a validation set apart from the test set,
              every pixel visible, the mean over real tokens.
`lra_compat`  as the published code does it: Text is validated on its test set and trains on all of the rest; pixels of
              value 0 are masked like padding; the mean divides by the padded length.
"""

from __future__ import annotations

from typing import Any

from transnormer.data.examples import Examples, ExampleStore, Joined
from transnormer.data.lra.spec import Spec


class LRAProtocol:
    """What a protocol decides about one task."""

    def __init__(self, name: str, spec: Spec) -> None:
        self.name = name
        self._compat = name == "lra_compat"
        self._validates_on_test = self._compat and spec.name == "lra/text"
        self.masks_black = self._compat and not spec.padded

    @property
    def model_fields(self) -> dict[str, Any]:
        """What it changes of a model."""
        return {"pooling": "padded_mean"} if self._compat else {}

    def examples(self, store: ExampleStore, split: str) -> Examples:
        """The examples behind the name of a split."""
        if self._validates_on_test and split == "train":
            return Joined(store.split("train"), store.split("valid"))
        return store.split("test" if self._validates_on_test and split == "valid" else split)

    def choice(self, examples: int | None) -> str:
        """In words, which checkpoint is tested, chosen on so many examples of its split (all: None)."""
        kind = "test" if self._validates_on_test else "validation"
        where = f"{examples:,} {kind} examples" if examples else f"the {kind} split"
        then = "then scored on the test split again" if self._validates_on_test else "test split scored once with it"
        return f"checkpoint chosen on {where}, {then}"

    def describe(self, split_rule: str) -> str:
        """Splits and masks in words."""
        rule = "validated on the test set, trained on all the rest" if self._validates_on_test else split_rule
        return f"{self.name}: {rule}" + ("; pixels of value 0 are masked" if self.masks_black else "")
