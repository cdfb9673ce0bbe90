"""Causal LM: every token but the first is scored exactly once, and the numbers equal a count by hand."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring import sums_of
from token_store import new_store

from transnormer.config.schema import RunConfig
from transnormer.data.prepare import prepare
from transnormer.data.store import TokenStore
from transnormer.data.tokenizers import load_tokenizer
from transnormer.errors import DataError
from transnormer.tasks.causal_lm import CausalLM


def stream(task: CausalLM, split: str) -> np.ndarray:
    return task.store.split(split).read(0, task.store.splits[split].tokens)


def test_training_windows_are_the_stream_without_its_partial_end(configure):
    task = CausalLM(configure())
    tokens = stream(task, "train")
    assert task.num_train_samples == (len(tokens) - 1) // 32
    batch = task.train_batch(range(task.num_train_samples))
    windows = {tuple(row) for row in batch["input_ids"].tolist()}
    assert windows == {tuple(tokens[i * 32 : i * 32 + 32].tolist()) for i in range(task.num_train_samples)}
    for inputs, targets in zip(batch["input_ids"], batch["targets"], strict=True):
        assert torch.equal(inputs[1:], targets[:-1])
    assert batch["input_ids"].shape == (task.num_train_samples, 32)
    assert task.tokens_in(batch) == task.targets_in(batch) == 32 * task.num_train_samples


def test_batches_are_a_pure_function_of_seed_and_position(configure):
    task, again, other = CausalLM(configure()), CausalLM(configure()), CausalLM(configure(seed=1))
    positions = [500, 3, 77, 3]
    batch = task.train_batch(positions)
    again.train_batch([9, 10])
    for name, tensor in again.train_batch(positions).items():
        assert torch.equal(tensor, batch[name])
        assert torch.equal(tensor, torch.cat([task.train_batch([position])[name] for position in positions]))
    assert torch.equal(batch["input_ids"][1], batch["input_ids"][3])
    assert not torch.equal(other.train_batch(positions)["input_ids"], batch["input_ids"])


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(2, 120), length=st.integers(1, 40), batch_size=st.integers(1, 5), world_size=st.integers(1, 3)
)
def test_every_token_but_the_first_is_scored_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, bigram_class, tokens: int, length: int, batch_size: int, world_size: int
):
    path = tmp_path_factory.getbasetemp() / f"count-{tokens}"
    ids = np.random.default_rng(tokens).integers(0, 11, size=tokens)
    if not path.exists():
        with new_store(path, vocab_size=11) as writer:
            writer.append("train", np.zeros(50, dtype=np.int64))
            writer.append("valid", ids, num_bytes=3 * tokens, num_words=tokens)
    data = {"store": str(path), "sequence_length": min(length, tokens - 1)}
    config = {"data": data, "train": {"batch_size": batch_size}}
    task, model = CausalLM(RunConfig.model_validate(config)), bigram_class(11)
    shares = [sums_of(task, model, "valid", rank, world_size) for rank in range(world_size)]
    sums = {name: sum(share[name] for share in shares) for name in shares[0]}

    log_p = model.table.log_softmax(-1).detach()
    loss = -sum(log_p[a, b].item() for a, b in pairwise(ids))
    correct = sum(int(log_p[a].argmax()) == b for a, b in pairwise(ids))
    assert sums["targets"] == tokens - 1
    assert sums["loss"] == pytest.approx(loss, rel=1e-5)
    assert sums["correct"] == correct
    metrics = task.metrics(sums)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss / (tokens - 1)), rel=1e-4)
    assert metrics["word_perplexity"] == pytest.approx(metrics["perplexity"])  # here a word is a token
    assert metrics["bits_per_byte"] == pytest.approx(loss / math.log(2) / (3 * (tokens - 1)), rel=1e-5)


def test_windows_do_not_overlap_and_only_the_last_is_shorter(configure, bigram):
    sums_of(CausalLM(configure()), bigram, "valid")
    # 999 targets are 31 windows of 32 in batches of 8, twice those of training, and one of 7
    assert bigram.lengths == [(8, 32)] * 3 + [(7, 32), (1, 7)]


def test_context_restarts_at_each_window(configure):
    """A model that sees everything before a token sees nothing of the window before."""

    class Recorder(torch.nn.Module):
        def score_targets(self, input_ids, targets):
            seen.extend(input_ids.tolist())
            return torch.zeros(2)

    seen: list[list[int]] = []
    task = CausalLM(configure())
    sums_of(task, Recorder(), "valid")
    tokens = stream(task, "valid").tolist()
    assert seen == [tokens[start : min(start + 32, 999)] for start in range(0, 999, 32)]


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(configure, bigram):
    bigram.table.data.zero_()
    metrics = CausalLM(configure()).metrics(sums_of(CausalLM(configure()), bigram, "valid"))
    assert metrics["perplexity"] == pytest.approx(259, rel=1e-5)
    assert metrics["bits_per_byte"] == pytest.approx(math.log2(259), rel=1e-6)
    assert metrics["loss"] == pytest.approx(math.log(259), rel=1e-6)


def test_eval_windows_limits_what_is_scored_and_what_is_counted(configure, bigram):
    task = CausalLM(configure(eval_windows=5))
    sums = sums_of(task, bigram, "valid")
    assert sums["targets"] == sums["bytes"] == 160
    words = task.store.splits["valid"].words
    assert sums["words"] == pytest.approx(words * 160 / 999)  # the first token is no whole word
    assert "first 5 windows" in task.protocol
    shares = [sums_of(task, bigram, "valid", rank, 2)["targets"] for rank in range(2)]
    assert shares == [96, 64]
    more = sums_of(CausalLM(configure(eval_windows=10_000)), bigram, "valid")
    assert more["targets"] == 999


def test_the_model_is_left_as_it_was(configure, bigram):
    task = CausalLM(configure())
    for training in (True, False):
        bigram.train(training)
        sums_of(task, bigram, "valid")
        assert bigram.training is training
    assert bigram.table.grad is None


def test_loss_is_a_sum_that_micro_batches_add_up_to(configure, bigram):
    task = CausalLM(configure())
    whole = task.loss_sum(bigram, task.train_batch(range(6)))
    parts = [task.loss_sum(bigram, task.train_batch(positions)) for positions in (range(2), range(2, 6))]
    assert whole.dtype == torch.float32
    assert whole.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-6)
    whole.backward()
    assert bigram.table.grad is not None
    half = task.loss_sum(bigram.to(torch.bfloat16), task.train_batch(range(6)))
    assert half.dtype == torch.float32


def test_word_perplexity_does_not_depend_on_the_tokenizer(tmp_path: Path):
    """Two vocabularies, two models that say the same about the text: same bits per byte, same word perplexity."""
    text = "ab ab ab cd\n" * 200
    (tmp_path / "wiki.train.tokens").write_text(text)
    (tmp_path / "wiki.valid.tokens").write_text(text)
    scores = {}
    for tokenizer in ("word", "byte"):
        store = prepare("wikitext2", tmp_path / tokenizer, tokenizer=tokenizer, source=tmp_path)
        info = TokenStore.open(store).splits["valid"]
        task = CausalLM(RunConfig.model_validate({"data": {"store": str(store), "sequence_length": 16}}))
        share = (info.tokens - 1) / info.tokens
        # 500 nats over the whole text, however it is cut
        sums = {"loss": 500 * share, "targets": info.tokens - 1, "correct": 0}
        sums |= {"bytes": info.bytes * share, "words": info.words * share}
        scores[tokenizer] = task.metrics(sums)
    assert scores["word"]["word_perplexity"] == pytest.approx(scores["byte"]["word_perplexity"])
    assert scores["word"]["word_perplexity"] == pytest.approx(math.exp(500 / 1000))
    assert scores["word"]["bits_per_byte"] == pytest.approx(scores["byte"]["bits_per_byte"])
    assert scores["word"]["word_perplexity"] == pytest.approx(scores["word"]["perplexity"])


def test_hopeless_models_have_infinite_perplexity(configure):
    sums = {"loss": 1e6, "targets": 1.0, "correct": 0.0, "bytes": 1.0, "words": 1.0}
    assert CausalLM(configure()).metrics(sums)["perplexity"] == math.inf


def test_a_store_of_bare_ids_has_no_scores_per_byte_or_word(tmp_path: Path, bigram_class):
    with new_store(tmp_path / "ids", vocab_size=11) as writer:
        for split in ("train", "valid"):
            writer.append(split, np.arange(100) % 11)
    task = CausalLM(RunConfig.model_validate({"data": {"store": str(tmp_path / "ids"), "sequence_length": 8}}))
    metrics = task.metrics(sums_of(task, bigram_class(11), "valid"))
    assert set(metrics) == {"loss", "perplexity", "accuracy"}
    assert task.primary_metric in metrics
    task.save_assets(tmp_path)  # there is no tokenizer to save, and that is no error


def test_the_model_fits_the_store(configure, tmp_path: Path):
    task = CausalLM(
        configure(model={"preset": "t2-tiny", "hidden_size": 32, "num_attention_heads": 2, "dropout": 0.25})
    )
    torch.manual_seed(0)
    model = task.build_model()
    assert model.config.vocab_size == 259
    assert (model.config.hidden_size, model.config.dropout) == (32, 0.25)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (257, 256)
    loss = task.loss_sum(model, task.train_batch([0, 1]))
    assert 3 < loss.item() / 64 < 9
    metrics = task.metrics(sums_of(task, model, "valid"))
    assert set(metrics) == {"loss", "perplexity", "word_perplexity", "bits_per_byte", "accuracy"}
    json.dumps(metrics)


def test_a_bidirectional_preset_is_made_causal(configure):
    model = CausalLM(configure(model={"preset": "vanilla-lra-text"})).build_model()
    assert model.config.causal


def test_a_model_folder_holds_its_tokenizer(configure, tmp_path: Path):
    task = CausalLM(configure())
    task.build_model().save_pretrained(tmp_path / "final")
    task.save_assets(tmp_path / "final")
    tokenizer = load_tokenizer(tmp_path / "final")
    assert tokenizer.encode("hi") == [104, 105]
    assert tokenizer.eos_token_id == 257


def test_data_that_cannot_be_trained_on(configure, byte_store: Path, bigram):
    with pytest.raises(DataError, match=r"train split has .* tokens, too few for one window of 100000"):
        CausalLM(configure(sequence_length=100_000))
    with pytest.raises(DataError, match="has no 'test' split"):
        sums_of(CausalLM(configure()), bigram, "test")
    shard = bytearray((byte_store / "valid-00000.bin").read_bytes())
    shard[0] ^= 1
    (byte_store / "valid-00000.bin").write_bytes(shard)
    with pytest.raises(DataError, match=r"valid-00000.bin was altered"):
        CausalLM(configure())


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({}, "has no 'valid' split"),
        ({"valid": 8}, "the valid split has 8 tokens, too few for one window of 8"),
        ({"valid": 9, "test": 1}, "the test split has 1 tokens, too few for one window of 8"),
    ],
)
def test_a_store_that_cannot_be_evaluated_on_is_refused_at_the_start(
    tmp_path: Path, splits: dict[str, int], message: str
):
    with new_store(tmp_path / "store", vocab_size=11) as writer:
        for split, tokens in {"train": 100, **splits}.items():
            writer.append(split, np.arange(tokens) % 11)
    with pytest.raises(DataError, match=message):
        CausalLM(RunConfig.model_validate({"data": {"store": str(tmp_path / "store"), "sequence_length": 8}}))


def test_a_corpus_is_prepared_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.txt").write_text("a line of my own\n" * 100)
    data = {"corpus": "text", "source": str(tmp_path / "mine.txt"), "sequence_length": 16}
    task = CausalLM(RunConfig.model_validate({"data": data}))
    assert task.store.path.parent == tmp_path / "cache" / "stores"
    assert CausalLM(RunConfig.model_validate({"data": data})).store.path == task.store.path


def test_the_test_split_is_scored_where_there_is_one(tmp_path: Path):
    def task(**splits: int) -> CausalLM:
        path = tmp_path / "-".join(f"{name}{tokens}" for name, tokens in splits.items())
        with new_store(path, vocab_size=11) as writer:
            for name, tokens in splits.items():
                writer.append(name, np.zeros(tokens, dtype=np.int64))
        return CausalLM(RunConfig.model_validate({"data": {"store": str(path), "sequence_length": 8}}))

    assert task(train=50, valid=9).test_split is None
    assert task(train=50, valid=9, test=9).test_split == "test"
