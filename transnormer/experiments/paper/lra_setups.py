"""The ways to make the Long-Range Arena table: what each is in words, and what a method is given in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product

from transnormer.errors import ConfigError
from transnormer.models.presets import METHODS, preset


@dataclass(frozen=True)
class Setup:
    """Its name in `--setup`, the folder of its recipes, and what a reader of its numbers must know.

    `chosen_for` is the one method that its settings were chosen for, if any: no others are on equal terms with it.
    """

    name: str
    recipes: str
    about: str
    chosen_for: str | None = None


SETUPS = (
    Setup(
        "skyformer",
        "lra",
        "Skyformer's configuration, which the paper states. The rows that the paper copied from Skyformer run as its "
        "code has them (`skyformer_compat`, dropout inside the FFN, none in the classifier), all others as defined.",
    ),
    Setup(
        "authors",
        "lra/authors",
        "That of the authors' own rows: pixels as numbers, sinusoids besides the rotation, BatchNorm, a cosine.",
    ),
    Setup(
        "release", "lra/release", "The larger models of the authors' released scripts, not those of the paper's table."
    ),
    Setup(
        "tuned",
        "lra/tuned",
        "T2's tuning: `authors` with learning rate, dropout, pooling and positions that were chosen for T2 alone, on "
        "validation splits. The other methods run with T2's settings and had no trials of their own: it says how good "
        "T2 can be, and is no comparison on equal terms.",
        chosen_for="T2",
    ),
    Setup(
        "fair",
        "lra/fair",
        "Every method chooses for itself on every task, by six trials of 5,000 steps and their score on the validation "
        "split: sinusoids, no positions, or RoPE alone, each with learning rate 3e-4 or 1e-3; a method that cannot "
        "rotate has a third rate, 1e-4, in RoPE's place. All else is as in `authors`, with mean pooling.",
    ),
    Setup(
        "long",
        "lra/long",
        "Pathfinder alone, as in `tuned` but for 250,000 steps, the 200 epochs that the authors' script asks for: five "
        "times the steps of every other set-up, not comparable with them. No augmentation: the protocol has none.",
        chosen_for="T2",
    ),
)

# Rows that the paper took from Skyformer's table.
COPIED = ("vanilla", "kernelized", "nystrom", "linformer", "informer", "performer", "reformer", "bigbird", "skyformer")

TRIAL_SEED = 42
TRIAL_SCHEDULE = ("train.steps=5000", "train.save_every=5000")
_RATES = ("3e-4", "1e-3")
_INSTEAD_OF_ROPE = "1e-4"  # the rate of the authors' script on most tasks
_WITHOUT_SINUSOIDS = ("model.position_embedding=none", "model.scale_embedding=null")
_POSITIONS: dict[str, Sequence[str]] = {
    "sinusoidal": ("model.position_embedding=sinusoidal", "model.position=none"),
    "none": (*_WITHOUT_SINUSOIDS, "model.position=none"),
    "rope": (*_WITHOUT_SINUSOIDS, "model.position=rope"),
}


def options(method: str) -> dict[str, list[str]]:
    """What a method may choose from in `fair`, six settings whichever it is, by name."""
    from transnormer.mixers.registry import can_rotate  # names are checked without torch

    rotates = can_rotate(preset(f"{method}-lra-listops").mixers or ())
    positions = list(_POSITIONS) if rotates else [name for name in _POSITIONS if name != "rope"]
    rates = _RATES if rotates else (_INSTEAD_OF_ROPE, *_RATES)
    return {f"{at}-{rate}": [*_POSITIONS[at], f"optim.lr={rate}"] for at, rate in product(positions, rates)}


def require_apart(keys: Collection[str]) -> None:
    """Refuse what would let the test split decide: the published protocol validates Text on it."""
    if "lra.protocol" in keys:
        raise ConfigError(
            "lra.protocol: `fair` chooses on a validation split that is apart from the test split",
            hint="leave it out, or choose another --setup",
        )


def as_published(method: str) -> list[str]:
    """What makes a model of ours that of Skyformer's code: the quirks of its attention, and where it has dropout."""
    from transnormer.mixers.registry import mixer_options

    mixer = METHODS[method]["mixers"]
    places = ["model.activation_dropout=0.1", "model.classifier_dropout=0.0"]
    if "skyformer_compat" not in mixer_options(mixer):
        return places
    return [f"model.mixer_options={{{mixer}: {{skyformer_compat: true}}}}", *places]
