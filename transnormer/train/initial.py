"""Starting from weights (`model.init`): which folder they lie in, whether they fit, and what of them is taken.

The backbone must fit whole, tensor by tensor, and compute what it was trained to compute. A head is taken where it is
that of the same task; another task's head begins anew, which is said.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transnormer.config.init_folder import MODEL_CONFIG, require_model, run_of
from transnormer.config.model_fields import field_types
from transnormer.data.tokenizers import load_tokenizer
from transnormer.errors import CheckpointError, ConfigError, DataError
from transnormer.files import require_small, sha256
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.config import TransNormerConfig
from transnormer.tasks.contract import Task
from transnormer.train.checkpoint import verify_if_sealed, weights_folder
from transnormer.train.run_folder import RunFolder

WEIGHTS = "model.safetensors"
_BACKBONE = f"{TransNormerPreTrainedModel.base_model_prefix}."
_HEADS = {
    "TransNormerForCausalLM": "lm head",
    "TransNormerForMaskedLM": "lm head",
    "TransNormerForSequenceClassification": "classifier",
    "TransNormerForPairClassification": "pair classifier",
}
# What of a model config weights do not depend on, or what their names and shapes say as well.
_FREE = {
    *("vocab_size", "max_position_embeddings", "dropout", "attention_dropout", "activation_dropout"),
    *("classifier_dropout", "pooling", "mixer_options"),
    *("classifier_hidden_size", "classifier_act", "init_scheme", "initializer_range", "tie_word_embeddings"),
    *("lm_head_bias", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id"),
}


@dataclass(frozen=True)
class Initial:
    """Weights that a run starts from. `step` and `task` are known of a run's alone."""

    init: str
    folder: str
    step: int | None
    task: str | None
    sha256: str

    def facts(self) -> dict[str, Any]:
        """For the run folder and its result."""
        return asdict(self)

    @property
    def title(self) -> str:
        """'runs/t2 (step 5,000)'."""
        return self.init if self.step is None else f"{self.init} (step {self.step:,})"


def find_initial(path: str, expected: dict[str, Any] | None = None) -> Initial:
    """The weights of a run (the final ones) or of a model folder, verified where a manifest says what they are.

    `expected` is what a run that is resumed has recorded: other weights in the same place are refused.
    """
    given = Path(path)
    run = run_of(given)
    step: int | None
    if run == given:
        folder, step = weights_folder(RunFolder(run), "final")
    else:
        folder = require_model(given)
        step = verify_if_sealed(folder)
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(f"model.init: {folder} has no {WEIGHTS}", hint="save or export the model again, in one file")
    task = RunFolder(run).read_config().task if run else None
    found = Initial(path, str(folder), step, task, sha256(folder / WEIGHTS))
    if expected is not None and found.sha256 != expected["sha256"]:
        raise CheckpointError(
            f"model.init: the weights in {folder} are not those that the run began with "
            f"(sha256 {found.sha256[:12]}, was {expected['sha256'][:12]}), and it has no checkpoint yet",
            hint="put the old weights back, or start a new run",
        )
    return found


def load_initial(model: TransNormerPreTrainedModel, task: Task, initial: Initial, task_name: str) -> str:
    """Put the weights into a fresh model of a task, or raise what does not fit; says what was taken and what is new."""
    folder = Path(initial.folder)
    config, architecture = _read_config(folder)
    _require_same_direction(initial, config, model.config)
    _require_same_tokenizer(initial, folder, task)
    stored = _read_weights(folder / WEIGHTS)
    ours = model.state_dict()
    names = [name for name in ours if name.startswith(_BACKBONE)]
    theirs = [name for name in stored if name.startswith(_BACKBONE)]
    for name in sorted({*names, *theirs}):
        _require_same_shape(initial, name, stored.get(name), ours.get(name))
    _require_same_function(initial, config, model.config)
    head, why_new = _HEADS[type(model).__name__], _why_new_head(model, architecture, initial, task_name)
    taken = {name: stored[name] for name in names}
    if why_new is None:
        # What is tied to the embedding is stored once.
        for name in sorted(stored.keys() - taken.keys()):
            _require_same_shape(initial, name, stored[name], ours.get(name))
        taken = stored
    with torch.no_grad():
        for name, tensor in taken.items():
            ours[name].copy_(tensor)
    if why_new is None:
        return f"backbone and {head} from {initial.title}"
    return f"backbone from {initial.title}, new {head}{why_new}"


def _why_new_head(model: TransNormerPreTrainedModel, architecture: str, initial: Initial, task_name: str) -> str | None:
    """None where the stored head is that of this very task."""
    if architecture != type(model).__name__:
        return ""
    if "Classification" not in architecture or initial.task == task_name:
        return None
    there = f"is of {initial.task}" if initial.task else "is of a task that nothing names"
    return f" (the one there {there})"


def _read_config(folder: Path) -> tuple[TransNormerConfig, str]:
    """The model config of a folder and the name of its class."""
    path = folder / MODEL_CONFIG
    require_small(path)
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        architecture = str((tree.get("architectures") or ["a model without a head"])[0])
        config = TransNormerConfig.from_dict(tree)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"model.init: {path} is damaged: {str(error).splitlines()[0]}") from error
    if architecture not in _HEADS:
        raise ConfigError(f"model.init: {folder} holds {architecture}", hint=f"give one of: {', '.join(_HEADS)}")
    return config, architecture


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"model.init: {path} is damaged: {error}") from error


def _require_same_direction(initial: Initial, theirs: TransNormerConfig, ours: TransNormerConfig) -> None:
    if theirs.causal != ours.causal:
        kinds = [("a causal" if config.causal else "a bidirectional") + " model" for config in (theirs, ours)]
        raise ConfigError(
            f"model.init: {initial.init} is {kinds[0]}, this task trains {kinds[1]}",
            hint="give weights of a causal_lm run to causal tasks, and of a masked_lm run to all others",
        )


def _require_same_function(initial: Initial, theirs: TransNormerConfig, ours: TransNormerConfig) -> None:
    """Weights of the same shapes compute something else under another activation, norm or order of layers."""
    for name in sorted(field_types().keys() - _FREE):
        if getattr(theirs, name) != getattr(ours, name):
            raise _other_model(initial, name, getattr(theirs, name), getattr(ours, name))
    for mixer in dict.fromkeys(ours.mixers or ()):
        options, wanted = ({**each.options_of(mixer), "dropout": None} for each in (theirs, ours))
        for name, value in options.items():
            if value != wanted.get(name):
                raise _other_model(initial, f"mixer_options.{mixer}.{name}", value, wanted.get(name))


def _other_model(initial: Initial, name: str, theirs: Any, ours: Any) -> ConfigError:
    return ConfigError(
        f"model.init: {initial.init} has model.{name}={theirs}, this run {ours}",
        hint="leave model.preset and the fields of the model out: they come with the weights",
    )


def _require_same_shape(initial: Initial, name: str, theirs: Tensor | None, ours: Tensor | None) -> None:
    if theirs is not None and ours is not None and theirs.shape == ours.shape:
        return
    shapes = [("missing" if tensor is None else str(list(tensor.shape))) for tensor in (theirs, ours)]
    hint = "leave model.preset and the fields of the model out: they come with the weights"
    if name.endswith("embed_positions.weight") and theirs is not None and ours is not None:
        hint = (
            f"a table of positions is as long as the longest sequence it was trained for: "
            f"set model.max_position_embeddings={len(theirs)}, and sequences no longer than that"
        )
    raise ConfigError(f"model.init: {name} is {shapes[0]} in {initial.init}, {shapes[1]} in this run", hint=hint)


def _require_same_tokenizer(initial: Initial, folder: Path, task: Task) -> None:
    """Ids mean the same in the data and in the weights; where one of them has no tokenizer, shapes must do."""
    with tempfile.TemporaryDirectory() as assets:
        task.save_assets(assets)
        if not all((place / "tokenizer.json").is_file() for place in (Path(assets), folder)):
            return
        theirs, ours = (load_tokenizer(place) for place in (folder, Path(assets)))
    tables = [tokenizer.get_vocab() for tokenizer in (theirs, ours)]
    parts = [json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (theirs, ours)]
    if tables[0] != tables[1]:
        token = min(token for token, number in (tables[0].items() ^ tables[1].items()))
        sizes = [f"{len(table):,} tokens, {token!r} is {table.get(token, 'none')}" for table in tables]
        difference = f"{sizes[0]}; in this run {sizes[1]}"
    elif other := next((key for key in ("model", "normalizer", "pre_tokenizer") if parts[0][key] != parts[1][key]), ""):
        difference = f"the same tokens, but another {other.replace('_', '-')}"
    else:
        return
    raise ConfigError(
        f"model.init: the tokenizer of {task.store.path} is not that of {initial.init}: there, {difference}",
        hint=f"prepare the data with its own tokenizer: --tokenizer {folder}",
    )
