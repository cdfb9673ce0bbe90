"""What a score on an example store means: what its splits share, and what one reaches without reading the sequences.

Deterministic and cheap: no rule here has a seed, and the only thing that is fitted has a closed form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from transnormer.data.examples import ExampleStore

_RIDGE = 1e-3  # per example, on standardised features


def describe(store: ExampleStore) -> dict[str, Any]:
    """Overlaps between the splits, and accuracies on the test split of rules that come from the training split."""
    return {"shared": shared(store), "baselines": baselines(store)}


def shared(store: ExampleStore) -> dict[str, dict[str, int]]:
    """Of valid and test: examples that are also in train, and pairs of which train has the first or the second text."""
    train = _digests(store, "train")
    seen, texts = set(train), {text for example in train for text in example}
    found = {}
    for split in ("valid", "test"):
        examples = _digests(store, split)
        found[split] = {"examples": len(examples), "in train": sum(example in seen for example in examples)}
        if store.sequences == 2:
            for side, name in enumerate(("first", "second")):
                found[split][f"{name} text in train"] = sum(example[side] in texts for example in examples)
    return found


def baselines(store: ExampleStore) -> dict[str, float]:
    """Accuracy on the test split, as a share, by the name of the rule."""
    train, test = store.split("train"), store.split("test")
    nothing = [np.zeros(len(split)) for split in (train, test)]
    found = {"majority class": _usual_class(nothing, train.labels, test.labels)}
    if store.task == "lra/listops":
        roots = [np.array([split.sequence(index)[0] for index in range(len(split))]) for split in (train, test)]
        found["root operator"] = _usual_class(roots, train.labels, test.labels)
    if store.sequences == 2:
        found["texts as names"] = _by_name(store)
    predicted = _least_squares(_bags(store, "train"), train.labels, _bags(store, "test"), store.num_labels)
    found["bag of tokens"] = float((predicted == test.labels).mean())
    return found


def _digests(store: ExampleStore, split: str) -> list[tuple[bytes, ...]]:
    """The sequences of every example, in 16 bytes each."""
    examples, sides = store.split(split), range(store.sequences)
    return [
        tuple(blake2b(examples.sequence(index, side).tobytes(), digest_size=16).digest() for side in sides)
        for index in range(len(examples))
    ]


def _usual_class(both: Sequence[np.ndarray], labels: np.ndarray, test_labels: np.ndarray) -> float:
    """The accuracy of the most frequent class in train of all examples with the same key; `both`: of train and test."""
    keys, test_keys = both
    overall = np.bincount(labels).argmax()
    rule = {key: np.bincount(labels[keys == key]).argmax() for key in np.unique(keys).tolist()}
    predicted = np.array([rule.get(key, overall) for key in test_keys.tolist()])
    return float((predicted == test_labels).mean())


def _by_name(store: ExampleStore) -> float:
    """Pairs by who is in them: whether their texts, as the first or the second, were in more true than false pairs.

    It reads nothing of the texts: well above one half, it would be a leak.
    """
    train, test = store.split("train"), store.split("test")
    votes: Counter[tuple[int, bytes]] = Counter()
    for example, label in zip(_digests(store, "train"), train.labels.tolist(), strict=True):
        votes.update(dict.fromkeys(enumerate(example), 2 * label - 1))
    usual = int(np.bincount(train.labels).argmax())
    sums = [sum(votes[place] for place in enumerate(example)) for example in _digests(store, "test")]
    predicted = [int(total > 0) if total else usual for total in sums]
    return float((np.array(predicted) == test.labels).mean())


def _bags(store: ExampleStore, split: str) -> np.ndarray:
    """How often each token is in an example, as a share of its length; of a pair both, their product and difference."""
    examples = store.split(split)
    bags = [np.zeros((len(examples), store.vocab_size), np.float32) for _ in range(store.sequences)]
    for index in range(len(examples)):
        for side, bag in enumerate(bags):
            ids = examples.sequence(index, side)
            bag[index] = np.bincount(ids, minlength=store.vocab_size) / len(ids)
    return np.concatenate([*bags, bags[0] * bags[1], bags[0] - bags[1]], axis=1) if len(bags) == 2 else bags[0]


def _least_squares(features: np.ndarray, labels: np.ndarray, test: np.ndarray, classes: int) -> np.ndarray:
    """The classes of `test` by a linear map of standardised features to one-hot labels, fitted with a little ridge."""
    middle, spread = features.mean(axis=0), features.std(axis=0) + 1e-8
    known, asked = ((rows - middle) / spread for rows in (features, test))
    gram = known.T.astype(np.float64) @ known + _RIDGE * len(known) * np.eye(known.shape[1])
    targets = np.eye(classes)[labels]
    weights = np.linalg.solve(gram, known.T @ (targets - targets.mean(axis=0)))
    return (asked @ weights + targets.mean(axis=0)).argmax(axis=1)
