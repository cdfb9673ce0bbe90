"""Masked LM: 15 % of the real tokens, 80/10/10, anew at each position, always the same in evaluation."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scoring import sums_of
from token_store import new_store

from transnormer.config.schema import RunConfig
from transnormer.data.sampling import TRAIN_MASKING, generator
from transnormer.data.tokenizers import byte_tokenizer, roberta_bpe, train_bpe, word_tokenizer, word_vocabulary
from transnormer.errors import ConfigError
from transnormer.tasks import token_windows
from transnormer.tasks.masked_lm import MaskedLM
from transnormer.tasks.masking import IGNORED, Masking

MASK = 258


def test_shares_over_many_tokens():
    ids = np.random.default_rng(0).integers(0, 256, size=200_000)
    inputs, targets = Masking(byte_tokenizer())(ids, generator(0, 0, TRAIN_MASKING))
    chosen = targets != IGNORED
    assert chosen.sum() in (30_000, 30_001)
    assert np.array_equal(targets[chosen], ids[chosen])
    assert np.array_equal(inputs[~chosen], ids[~chosen])
    masked, kept = inputs[chosen] == MASK, inputs[chosen] == ids[chosen]
    # five standard deviations around 80 %, and around 10 % + 10 % / 256 for those a random token left as they were
    assert masked.mean() == pytest.approx(0.8, abs=5 * math.sqrt(0.16 / 30_000))
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 256, abs=5 * math.sqrt(0.09 / 30_000))
    replaced = inputs[chosen][~masked & ~kept]
    assert replaced.max() < 256
    assert len(np.unique(replaced)) == 256  # any ordinary token may come


def test_places_are_uniform():
    masking, hits = Masking(byte_tokenizer()), np.zeros(40)
    for position in range(4000):
        hits += masking(np.full(40, 65), generator(0, position, TRAIN_MASKING))[1] != IGNORED
    assert hits.sum() == 4000 * 6  # 15 % of 40, exactly
    assert np.abs(hits / 4000 - 0.15).max() < 5 * math.sqrt(0.15 * 0.85 / 4000)


@pytest.mark.parametrize(("length", "expected"), [(1, {1}), (3, {1}), (10, {1, 2}), (30, {4, 5}), (100, {15})])
def test_short_windows_have_a_target_and_long_ones_15_percent(length: int, expected: set[int]):
    masking = Masking(byte_tokenizer())
    counts = {
        int((masking(np.full(length, 65), generator(1, position, TRAIN_MASKING))[1] != IGNORED).sum())
        for position in range(200)
    }
    assert counts == expected
    assert max(counts) <= Masking.most(length) <= max(counts) + 1


def test_special_tokens_are_never_chosen_nor_put_in():
    ids = np.array([65, 257, 256, 66] * 5000)
    inputs, targets = Masking(byte_tokenizer())(ids, generator(0, 0, TRAIN_MASKING))
    special = ids >= 256
    assert (targets[special] == IGNORED).all()
    assert np.array_equal(inputs[special], ids[special])
    assert (targets != IGNORED).sum() in (1500, 1501)  # 15 % of the real ones
    assert not np.isin(inputs[~special], [256, 257]).any()


def test_a_window_of_special_tokens_only_has_no_target():
    _, targets = Masking(byte_tokenizer())(np.array([257, 257]), generator(0, 0, TRAIN_MASKING))
    assert (targets == IGNORED).all()


def test_unknown_words_can_be_masked():
    words = word_tokenizer(word_vocabulary(Counter(["a", "b"])))
    _, targets = Masking(words)(np.full(100, words.unk_token_id), generator(0, 0, TRAIN_MASKING))
    assert (targets != IGNORED).sum() == 15


def test_masks_are_a_pure_function_of_seed_and_position(configure):
    task, again, other = (MaskedLM(configure("masked_lm", seed=seed)) for seed in (0, 0, 1))
    n = task.num_train_samples
    batch = task.train_batch([5, 6, n + 5])
    again.train_batch([1, 2, 3])
    for name, tensor in again.train_batch([5, 6, n + 5]).items():
        assert torch.equal(tensor, batch[name])
        assert torch.equal(tensor[:1], task.train_batch([5])[name])
    assert not torch.equal(other.train_batch([5])["targets"], batch["targets"][:1])


def test_masks_are_dynamic(configure):
    """The same window is masked in another way in each epoch."""
    task = MaskedLM(configure("masked_lm"))
    n = task.num_train_samples
    seen: dict[int, set[tuple[int, ...]]] = {}
    for position in range(4 * n):
        _, index = task._sampler.index(position)
        targets = task.train_batch([position])["targets"][0]
        seen.setdefault(index, set()).add(tuple(torch.nonzero(targets != IGNORED).flatten().tolist()))
    assert all(len(masks) >= 3 for masks in seen.values())


def test_evaluation_masks_are_the_same_in_every_run(configure, bigram):
    sums = [
        sums_of(MaskedLM(configure("masked_lm", seed=seed, batch_size=size)), bigram, "valid")
        for seed, size in ((0, 4), (9, 3))
    ]
    assert sums[0]["targets"] == sums[1]["targets"]
    assert sums[0]["loss"] == pytest.approx(sums[1]["loss"], rel=1e-6)


def test_the_loss_is_on_masked_tokens_only(configure, bigram):
    task = MaskedLM(configure("masked_lm"))
    batch = task.train_batch(range(8))
    chosen = batch["targets"] != IGNORED
    log_p = bigram.table.log_softmax(-1)
    by_hand = -log_p[batch["input_ids"][chosen], batch["targets"][chosen]].sum()
    assert task.loss_sum(bigram, batch).item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert task.targets_in(batch) == chosen.sum()
    assert task.tokens_in(batch) == 8 * 32


def test_the_head_sees_little_more_than_masked_tokens(configure, monkeypatch: pytest.MonkeyPatch):
    task = MaskedLM(configure("masked_lm", model={"preset": "t2-tiny", "hidden_size": 32, "num_attention_heads": 2}))
    torch.manual_seed(0)
    model, batch = task.build_model().eval(), task.train_batch(range(8))
    seen: list[tuple[int, ...]] = []
    model.lm_head.norm.register_forward_hook(lambda _, inputs, output: seen.append(tuple(output.shape[:2])))
    with_logits = task.loss_sum(model, batch)
    monkeypatch.setattr(token_windows, "_MOST_LOGITS", 0)  # as on a GPU
    torch.testing.assert_close(task.loss_sum(model, batch), with_logits)
    assert seen == [(8, 32), (8, 5)]  # 15 % of 32 tokens are at most 5


def test_evaluation_by_hand_and_over_ranks(configure, bigram):
    task = MaskedLM(configure("masked_lm"))
    windows = task.windows("valid")
    assert (len(windows), windows.complete) == (32, 31)
    log_p, loss, targets, correct = bigram.table.log_softmax(-1).detach(), 0.0, 0, 0
    for index in range(len(windows)):
        inputs, expected = task.eval_sample(windows[index], index)
        for place in np.flatnonzero(expected != IGNORED):
            loss -= log_p[inputs[place], expected[place]].item()
            correct += int(log_p[inputs[place]].argmax()) == expected[place]
            targets += 1
    for world_size in (1, 3):
        shares = [sums_of(task, bigram, "valid", rank, world_size) for rank in range(world_size)]
        sums = {name: sum(share[name] for share in shares) for name in shares[0]}
        assert (sums["targets"], sums["correct"]) == (targets, correct)
        assert sums["loss"] == pytest.approx(loss, rel=1e-5)
        metrics = task.metrics(sums)
        assert metrics["perplexity"] == pytest.approx(math.exp(loss / targets), rel=1e-4)
        assert metrics["accuracy"] == pytest.approx(correct / targets)


def write_roberta_store(tmp_path: Path) -> Path:
    text = "the cat sat on the mat and the dog sat too\n" * 100
    model = json.loads(train_bpe([text], 280).backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    tokenizer = roberta_bpe(tmp_path / "vocab.json", tmp_path / "merges.txt")
    ids = np.array(tokenizer.encode(text, add_special_tokens=False))
    with new_store(tmp_path / "roberta", tokenizer=tokenizer) as writer:
        writer.append("train", ids)
        writer.append("valid", ids[:103])
    return tmp_path / "roberta"


def test_roberta_windows_stand_between_their_marks(configure, tmp_path: Path):
    task = MaskedLM(configure("masked_lm", store=str(write_roberta_store(tmp_path)), sequence_length=22))
    batch = task.train_batch(range(10))
    assert batch["input_ids"].shape == (10, 22)
    assert (batch["input_ids"][:, 0] == task.tokenizer.cls_token_id).all()
    assert (batch["input_ids"][:, -1] == task.tokenizer.sep_token_id).all()
    assert (batch["targets"][:, [0, -1]] == IGNORED).all()
    assert task.targets_in(batch) == 10 * 3  # 15 % of the 20 tokens of text
    windows = task.windows("valid")
    assert [len(windows[i]) for i in range(len(windows))] == [20] * 5 + [3]
    with pytest.raises(ConfigError, match="leaves no room"):
        MaskedLM(configure("masked_lm", store=str(tmp_path / "roberta"), sequence_length=2))


def test_the_model_is_bidirectional_and_learns(configure):
    model_section = {"preset": "t2-tiny", "hidden_size": 32, "num_attention_heads": 2}
    task = MaskedLM(configure("masked_lm", model=model_section, eval_windows=8))
    torch.manual_seed(0)
    model = task.build_model()
    assert not model.config.causal
    before = task.metrics(sums_of(task, model, "valid"))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(30):
        batch = task.train_batch(range(8 * step, 8 * step + 8))
        (task.loss_sum(model, batch) / task.targets_in(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = task.metrics(sums_of(task, model, "valid"))
    assert set(after) == {"loss", "perplexity", "accuracy"}
    assert after["perplexity"] < 0.5 * before["perplexity"]


def test_a_tokenizer_without_mask_says_which_have_one(tmp_path: Path):
    with new_store(tmp_path / "ids", vocab_size=11) as writer:
        writer.append("train", np.arange(100) % 11)
    config = RunConfig.model_validate({"task": "masked_lm", "data": {"store": str(tmp_path / "ids")}})
    with pytest.raises(ConfigError, match=r"ids: masked_lm needs a tokenizer with a <mask>.*roberta:FOLDER"):
        MaskedLM(config)
