"""Every key a recipe may hold, with its type, default and meaning. Defaults are what most runs want."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from transnormer.config.glue import GlueSection
from transnormer.config.lra import LRASection
from transnormer.config.model_fields import Rule, field_rules, field_types
from transnormer.config.recall import RecallSection
from transnormer.config.renamed import RENAMED, task_family
from transnormer.config.section import MAX_COUNT, MAX_FACTOR, Section, TaskSection
from transnormer.errors import ConfigError

# Of data.tokenizer: names, and what stands before the folder in 'gpt2:FOLDER'. All else is a folder by itself.
BUILT_TOKENIZERS, TOKENIZERS_FROM_FOLDER = ("byte", "bpe", "word"), ("gpt2", "roberta")

Beta = Annotated[float, Field(ge=0, lt=1)]


_LATER_KEYS = ("init", "base", "activation_dropout", "classifier_dropout")


class _ModelSection(Section):
    """The model: a preset by name and, field by field, what differs from it (null keeps the preset's value)."""

    preset: str | None = Field(
        default="t2-tiny", description="'<method>-<size>', see `transnormer list presets`; null: the model of `init`"
    )
    init: str | None = Field(
        default=None, description="start from the weights of a run (its final ones) or of a model folder"
    )
    base: dict[str, JsonValue] | None = Field(
        default=None, description="the model config of a folder in `init`; filled in where no preset is given"
    )

    @field_validator("init")
    @classmethod
    def _init_from_anywhere(cls, path: str | None) -> str | None:
        """A path is meant from where it is written: a run may be resumed from another folder."""
        return None if path is None else str(Path(path).absolute())

    @model_validator(mode="after")
    def _is_one_model(self) -> Self:
        if self.preset is None and self.base is None:
            raise ConfigError("model.preset: is null, and no model.init says which model it is", "name a preset")
        if self.preset is not None and self.base is not None:
            raise ConfigError(f"model.base: is a model by itself, and model.preset is {self.preset}", "leave one out")
        return self

    @model_serializer(mode="wrap")
    def _without_unused_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A run that sets none of them has none, as before there were any: it keeps its hash."""
        return {name: value for name, value in dump(self).items() if value is not None or name not in _LATER_KEYS}

    @property
    def name(self) -> str:
        """What to call the model in a line for people."""
        return self.preset or f"the model of {self.init}"

    def changes(self) -> dict[str, Any]:
        """The fields that differ from the preset."""
        return self.model_dump(exclude={"preset", "init", "base"}, exclude_none=True)


def _model_key(name: str, rule: Rule) -> tuple[Any, FieldInfo]:
    """The type and constraints of the key for a field of a model."""
    kind: Any = Literal[rule.choices] if rule.choices else field_types()[name]
    if name == "mixer_options":  # what only a mixer can check is at least what a file can hold
        kind = dict[str, dict[str, JsonValue]]
    bounds: dict[str, Any] = (
        {"gt": 0, "le": rule.at_most} if rule.is_count else {"ge": 0, "lt": 1} if rule.is_probability else {}
    )
    return kind | None, Field(default=None, description=rule.meaning, **bounds)


if TYPE_CHECKING:

    class ModelSection(_ModelSection):
        """With a key for every field of a model."""

        def __getattr__(self, name: str) -> Any: ...
else:
    ModelSection = create_model(
        "ModelSection",
        __base__=_ModelSection,
        __doc__=_ModelSection.__doc__,
        **{name: _model_key(name, rule) for name, rule in field_rules().items() if rule.meaning},
    )


class DataSection(Section):
    """Where the data come from: a prepared store, or a corpus or task that is prepared on first use."""

    store: str | None = Field(
        default=None, description="folder written by `transnormer data prepare`; null uses `corpus`"
    )
    corpus: str = Field(
        default="python", description="corpus to prepare when `store` is null; 'python' is the embedded one"
    )
    source: str | None = Field(
        default=None,
        description="file, folder or pattern of `corpus`, e.g. 'my/*.txt' for corpus text, or the files of a task",
    )
    tokenizer: str | None = Field(
        default=None, description="byte, bpe, word, gpt2:FOLDER, roberta:FOLDER or a saved one; null: the corpus's own"
    )
    vocab_size: int | None = Field(
        default=None,
        gt=0,
        le=MAX_COUNT,
        description="tokens of a trained bpe (null: 8000), or of a word vocabulary (null: all)",
    )
    limit_bytes: int | None = Field(
        default=None, gt=0, le=MAX_COUNT, description="train on the first so many bytes of `corpus` only"
    )
    sequence_length: int = Field(
        default=512, gt=0, le=MAX_COUNT, description="tokens per training and evaluation window"
    )
    eval_windows: int | None = Field(
        default=None, gt=0, le=MAX_COUNT, description="evaluate on the first so many windows; null: all"
    )

    @field_validator("store")
    @classmethod
    def _store_from_anywhere(cls, path: str | None) -> str | None:
        """A path is meant from where it is written: a run may be resumed from another folder."""
        return None if path is None else str(Path(path).absolute())

    @field_validator("source")
    @classmethod
    def _source_from_anywhere(cls, path: str | None) -> str | None:
        """Likewise; the name of the folder where it is written is no part of a pattern."""
        if path is None:
            return None
        is_pattern = glob.has_magic(path) and not os.path.exists(path)  # noqa: PTH110 - Path raises at a name too long
        here = str(Path.cwd())
        return str(Path(glob.escape(here) if is_pattern else here, path))

    @field_validator("tokenizer")
    @classmethod
    def _tokenizer_from_anywhere(cls, name: str | None) -> str | None:
        """Likewise, where it is a folder or holds the name of one."""
        if not name or name in BUILT_TOKENIZERS:
            return name
        kind, _, folder = name.partition(":")
        if kind in TOKENIZERS_FROM_FOLDER and folder:
            return f"{kind}:{Path(folder).absolute()}"
        is_saved = os.path.isfile(Path(name, "tokenizer.json"))  # noqa: PTH113 - as above
        return str(Path(name).absolute()) if is_saved else name


class OptimSection(Section):
    """AdamW and its schedule. `schedule` is a pure function of the step, so resuming needs only the step."""

    lr: float = Field(default=5e-4, gt=0, le=MAX_FACTOR, description="peak learning rate")
    # Not strict, because YAML has lists and no tuples; the two numbers inside still are.
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = Field(
        default=(0.9, 0.98), description="AdamW betas; one_cycle overrides the first"
    )
    eps: float = Field(default=1e-8, ge=1e-30, le=1, description="AdamW epsilon")
    weight_decay: float = Field(
        default=0.01, ge=0, le=MAX_FACTOR, description="decoupled decay, on matrices only unless decay_all"
    )
    decay_all: bool = Field(default=False, description="decay biases, norms and embeddings too, as fairseq does")
    schedule: Literal["constant", "inverse_sqrt", "polynomial", "cosine", "one_cycle"] = Field(
        default="cosine", description="shape of the learning rate after the warm-up"
    )
    warmup_steps: int = Field(
        default=0, ge=0, le=MAX_COUNT, description="linear warm-up; for one_cycle the length of the rising part"
    )
    final_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="where cosine and polynomial end, relative to lr"
    )
    power: float = Field(default=1.0, gt=0, le=MAX_FACTOR, description="exponent of the polynomial schedule")
    cycle_momentum: bool = Field(default=True, description="one_cycle: also cycle beta1 0.95 -> 0.85 -> 0.95")
    clip_norm: float | None = Field(default=None, gt=0, le=1e30, description="clip the global gradient norm")
    clip_value: float | None = Field(default=None, gt=0, le=1e30, description="clip each gradient entry")


class TrainSection(Section):
    """The loop."""

    steps: int = Field(default=1000, gt=0, le=MAX_COUNT, description="optimizer steps")
    batch_size: int = Field(
        default=16, gt=0, le=MAX_COUNT, description="sequences per optimizer step, over all processes"
    )
    micro_batch_size: int | None = Field(
        default=None, gt=0, le=MAX_COUNT, description="sequences per forward pass and process; null: all"
    )
    eval_batch_size: int | None = Field(
        default=None,
        gt=0,
        le=MAX_COUNT,
        description="sequences per forward pass of an evaluation; null: twice those of training",
    )
    eval_every: int = Field(
        default=500, gt=0, le=MAX_COUNT, description="steps between evaluations (one is always made at the end)"
    )
    save_every: int = Field(
        default=500, gt=0, le=MAX_COUNT, description="steps between checkpoints (one is always made at the end)"
    )
    log_every: int = Field(default=10, gt=0, le=MAX_COUNT, description="steps between journal lines")
    keep_last: int = Field(default=2, gt=0, le=MAX_COUNT, description="checkpoints kept besides the best one")
    precision: Literal["auto", "float32", "bf16"] = Field(
        default="auto", description="auto: bf16 on CUDA, float32 on CPU"
    )
    execution: Literal["auto", "eager", "compile", "cuda_graph"] = Field(
        default="auto",
        description="how a step runs: op by op, compiled, or compiled and as one CUDA graph; "
        "auto: on CUDA cuda_graph (with several processes or gradient_checkpointing: compile), on CPU eager",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="keep the input of each layer alone and compute the rest again in the backward pass: "
        "less memory, more time",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: CUDA where there is one")
    threads: int | None = Field(
        default=None,
        gt=0,
        le=1024,
        description="of PyTorch on a CPU; null: as OMP_NUM_THREADS says, or as many as the machine has idle cores",
    )
    context_parallel: int = Field(
        default=1,
        gt=0,
        le=MAX_COUNT,
        description="processes that share each sequence, a piece of whole blocks each; diag and norm layers can",
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="several processes: each has all weights (ddp), or a share of weights and optimizer state (fsdp)",
    )
    rank_timeout: int = Field(
        default=600,
        gt=0,
        le=MAX_COUNT,
        description="seconds that processes wait for one of them, e.g. while it saves, before all end with its name",
    )
    nonfinite: Literal["stop", "skip", "rewind"] = Field(default="stop", description="what a NaN loss or gradient does")
    nonfinite_limit: int = Field(
        default=3, gt=0, le=MAX_COUNT, description="skip/rewind: stop after so many in one run"
    )
    tensorboard: bool = Field(default=False, description="also write TensorBoard events into RUN/tensorboard")
    log_layer_gradients: bool = Field(
        default=False, description="journal lines also hold the gradient norm of each layer, the embedding and the head"
    )

    @field_validator("device", mode="before")
    @classmethod
    def _no_apple_gpu(cls, device: Any) -> Any:
        if device == "mps":
            raise ConfigError(
                "train.device: Apple GPUs (mps) are not supported: no step of ours has been tested on one",
                hint="use train.device=cpu, which is what auto means on a Mac",
            )
        return device

    @model_serializer(mode="wrap")
    def _without_unused_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A run that does not use a newer key has no such key, as before there was one: it keeps its hash."""
        unused = {
            "threads": None,
            "log_layer_gradients": False,
            "gradient_checkpointing": False,
            "context_parallel": 1,
            "parallel": "ddp",
            "rank_timeout": 600,
        }
        return {name: value for name, value in dump(self).items() if name not in unused or value != unused[name]}


class RunConfig(Section):
    """A whole run."""

    task: str = Field(default="causal_lm", description="what is learned, see `transnormer list tasks`")
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="decides initial weights, sample order, dropout and masking"
    )
    model: ModelSection = Field(default_factory=lambda: ModelSection())
    data: DataSection = Field(default_factory=lambda: DataSection())
    optim: OptimSection = Field(default_factory=lambda: OptimSection())
    train: TrainSection = Field(default_factory=lambda: TrainSection())
    # One section for each family of tasks that has keys of its own.
    lra: LRASection = Field(default_factory=lambda: LRASection())
    glue: GlueSection = Field(default_factory=lambda: GlueSection())
    recall: RecallSection = Field(default_factory=lambda: RecallSection())

    def foreign_sections(self) -> dict[str, TaskSection]:
        """The sections of other tasks than this run's, by name."""
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: section
            for name, section in sections.items()
            if isinstance(section, TaskSection) and name != task_family(self.task)
        }

    @model_serializer(mode="wrap")
    def _without_foreign_sections(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        foreign = self.foreign_sections()
        return {name: value for name, value in dump(self).items() if name not in foreign}

    @model_validator(mode="after")
    def _keys_have_a_meaning(self) -> RunConfig:
        for name, section in self.foreign_sections().items():
            for key in sorted(section.model_fields_set):
                raise ConfigError(
                    f"{name}.{key}: is a key of the {name} tasks, the task is {self.task}",
                    hint=f"leave it out, or name one of them, e.g. task={name}/...",
                )
        own = getattr(self, task_family(self.task), None)
        for key in own.idle_data_keys if isinstance(own, TaskSection) else ():
            value = getattr(self.data, key)
            if value != DataSection.model_fields[key].default:
                renamed = RENAMED.get(f"data.{key}")
                renamed = renamed if renamed and renamed.family in (None, task_family(self.task)) else None
                raise ConfigError(
                    f"data.{key}: has no meaning for {self.task}, it is a key of tasks that read a corpus",
                    hint=renamed.hint(value) if renamed else "leave it out",
                )
        return self

    @model_validator(mode="after")
    def _warmup_fits(self) -> RunConfig:
        if self.optim.warmup_steps >= self.train.steps:
            raise ConfigError(
                f"optim.warmup_steps ({self.optim.warmup_steps}) must be smaller than train.steps ({self.train.steps})",
                hint=f"set both, e.g. train.steps={self.train.steps} optim.warmup_steps={self.train.steps // 10}",
            )
        return self
