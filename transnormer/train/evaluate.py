"""A causal language model scored by any protocol: that of a run or of a model folder, on a split or on text files.

`evaluate_run` in `train/loop.py` scores a run of any task as it was while it trained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transnormer.config.schema import RunConfig, TrainSection
from transnormer.data.documents import find_documents
from transnormer.data.store import SplitInfo
from transnormer.data.streams import TokenStream, after_first, read_texts
from transnormer.data.tokenizers import load_tokenizer
from transnormer.environment import describe_environment
from transnormer.errors import ConfigError, DataError, command
from transnormer.files import sha256
from transnormer.generate.load import load_model
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.step.execution import Execution
from transnormer.tasks.protocols.carried import CarriedState
from transnormer.tasks.protocols.contexts import ContextCurve
from transnormer.tasks.protocols.spans import SUMS
from transnormer.tasks.protocols.windows import SlidingWindows
from transnormer.tasks.text_scores import text_counts, text_scores, with_text
from transnormer.tasks.token_windows import open_store
from transnormer.train.checkpoint import Which, verify_if_sealed, weights_folder
from transnormer.train.ranks import Ranks
from transnormer.train.run_folder import RunFolder

# Tokens of one forward pass: enough to fill the device, without logits in memory.
_TOKENS_AT_ONCE = {"cuda": 2**16, "cpu": 2**13}


@dataclass(frozen=True)
class Subject:
    """A model and what it is to be scored on.

    scorable   the sizes of what can be predicted
    length     tokens of a window, unless another number is asked for: as in training
    tokenizer  of the text, and its corpus, where they are known: they say what a document is
    facts      which model and which text, for the result
    """

    model: TransNormerForCausalLM
    stream: TokenStream
    scorable: SplitInfo
    length: int
    tokenizer: Any
    corpus: str | None
    execution: Execution
    facts: dict[str, Any]

    @property
    def tokens_at_once(self) -> int:
        """Tokens of one forward pass."""
        return _TOKENS_AT_ONCE[self.execution.device.type]


def open_subject(path: Path, checkpoint: Which | None, split: str, texts: Sequence[Path]) -> Subject:
    """The model of a run (its final weights, unless others are asked for) or of a model folder, and its text.

    The text is a split of the run's data, or files that the model's own tokenizer reads.
    """
    config = _causal_run(path) if (path / "config.yaml").is_file() else None
    if not config and not texts:
        raise ConfigError(f"{path} is a model without data", "give --text FILE, or the run folder it came from")
    train = config.train if config else TrainSection()
    ranks = Ranks(train.model_copy(update={"context_parallel": 1, "parallel": "ddp"}))
    if ranks.world_size > 1:
        raise ConfigError("this evaluation runs in one process", "leave `accelerate launch` out")
    facts: dict[str, Any] = {"model": str(path)}
    weights = path
    if config:
        weights, step = weights_folder(RunFolder(path), checkpoint or "final")
        facts = {"run": str(path), "checkpoint": checkpoint or "final", "step": step}
    else:
        verify_if_sealed(weights)
    model = load_model(weights, ranks.device.type, torch.float32)
    if not isinstance(model, TransNormerForCausalLM):
        raise ConfigError(f"{path} holds a {type(model).__name__}", "eval scores models of this package")
    stream: TokenStream
    corpus = None
    if texts:
        tokenizer = load_tokenizer(weights)
        _require_fit(weights, tokenizer, model)
        stream = read_texts(texts, tokenizer)
        info = stream.info
        facts["texts"] = {str(file): sha256(file) for file in texts}
    else:
        assert config is not None
        folder = RunFolder(path)
        folder.require_store(config)
        store = open_store(config)
        folder.require_data(store)
        tokenizer = load_tokenizer(store.tokenizer_path) if store.tokenizer_path else None
        stream, corpus = store.split(split), store.meta.get("corpus")
        info = stream.info
        facts |= {"split": split, "data": {"store": store.path.name, "digest": store.digest}}
    if len(stream) < 2:
        raise DataError(f"the {split} split has {len(stream)} token, too few to be scored", "give more text")
    return Subject(
        model=model,
        stream=stream,
        scorable=after_first(stream, info, tokenizer),
        length=config.data.sequence_length if config else model.config.max_position_embeddings,
        tokenizer=tokenizer,
        corpus=corpus,
        execution=Execution("eager", ranks.device, bf16=ranks.uses_bf16),
        facts=facts,
    )


def evaluate_text(subject: Subject, context: int | None, stride: int | None, carry: bool) -> dict[str, Any]:
    """The scores by the protocol that was asked for: sliding windows, a carried state, or windows without overlap."""
    protocol: CarriedState | SlidingWindows
    if carry:
        documents = find_documents(subject.stream, subject.tokenizer, subject.corpus)
        protocol = CarriedState(documents)
        settings: dict[str, Any] = {"carry": True, "documents": len(documents.spans(len(subject.stream)))}
    else:
        length = context or subject.length
        protocol = SlidingWindows(length, stride or length)
        settings = {"context": length, "stride": protocol.stride}
    began = time.perf_counter()
    with torch.no_grad(), subject.execution.autocast():
        found = protocol.sums(subject.model, subject.stream, subject.execution.device, subject.tokens_at_once)
    sums = with_text(dict(zip(SUMS, found.tolist(), strict=True)), subject.scorable)
    return {
        **subject.facts,
        "protocol": f"{protocol.description}, scored on {_what(subject)}",
        **settings,
        "counts": text_counts(sums, subject.scorable),
        "metrics": text_scores(sums),
        **_provenance(subject, began),
    }


def evaluate_contexts(subject: Subject, contexts: Sequence[int]) -> dict[str, Any]:
    """Scores of the same targets at every context (see `ContextCurve`)."""
    curve = ContextCurve(tuple(contexts))
    began = time.perf_counter()
    with torch.no_grad(), subject.execution.autocast():
        found = curve.losses(subject.model, subject.stream, subject.execution.device, subject.tokens_at_once)
    sums = {
        context: {way: with_text(each, subject.scorable) for way, each in ways.items()}
        for context, ways in found.items()
    }
    return {
        **subject.facts,
        "protocol": curve.description,
        "trained_at": subject.length,
        "counts": text_counts(sums[max(contexts)]["windows"], subject.scorable),
        "contexts": [
            {"context": context, **{way: text_scores(each) for way, each in ways.items()}}
            for context, ways in sums.items()
        ],
        **_provenance(subject, began),
    }


def _causal_run(path: Path) -> RunConfig:
    config = RunFolder(path).read_config()
    if config.task != "causal_lm":
        raise ConfigError(
            f"{path} is a run of {config.task}, which does not predict the next token",
            f"`{command('eval', path)}`, without these options, scores it as it was trained",
        )
    return config


def _require_fit(folder: Path, tokenizer: Any, model: TransNormerForCausalLM) -> None:
    if len(tokenizer) > model.config.vocab_size:
        raise DataError(
            f"the tokenizer in {folder} has {len(tokenizer):,} tokens, the model {model.config.vocab_size:,}",
            "put the tokenizer that it was trained with back into the folder",
        )
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token", "set its eos_token and save it again")


def _what(subject: Subject) -> str:
    return "every token of the text" if "texts" in subject.facts else "every token but the first of the split"


def _provenance(subject: Subject, began: float) -> dict[str, Any]:
    execution = subject.execution
    return {
        "device": execution.device.type,
        "precision": "bf16" if execution.bf16 else "float32",
        "seconds": time.perf_counter() - began,
        **describe_environment(),
    }
