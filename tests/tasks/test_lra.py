"""The Long-Range Arena tasks: batches, scores counted by hand, and what the two protocols change."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lra_files import SOURCES, lra_config, write_pairs
from scoring import sums_of
from torch import Tensor, nn

from transnormer.config.load import load_config
from transnormer.config.lra import LRASection
from transnormer.data.example_writer import ExampleWriter, Form
from transnormer.data.lra.prepare import prepare
from transnormer.errors import ConfigError, DataError
from transnormer.experiments.job import differences
from transnormer.models.presets import METHODS, list_presets
from transnormer.tasks.lra import LongRangeArena

Stores = Callable[[str], Path]


class ByLength(nn.Module):
    """Classifies by the number of real tokens alone, so that its score can be counted by hand."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.widths: list[int] = []

    def logits(self, length: int) -> list[float]:
        return [float((length * (label + 3)) % 7) for label in range(self.num_labels)]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        self.widths.append(input_ids.shape[1])
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return SimpleNamespace(logits=torch.tensor([self.logits(int(length)) for length in mask.sum(dim=1)]))


def build(stores: Stores, task: str, **changes: Any) -> LongRangeArena:
    return LongRangeArena(lra_config(task, stores(task), **changes))


@pytest.mark.parametrize("task", ["lra/text", "lra/listops", "lra/image"])
def test_scores_counted_by_hand(lra_store: Stores, task: str):
    arena = build(lra_store, task)
    split, model = arena.store.split("test"), ByLength(arena.store.num_labels)
    logits = torch.tensor([model.logits(int(length)) for length in split.lengths[:, 0]])
    labels = torch.from_numpy(split.labels)
    metrics = arena.metrics(sums_of(arena, model, "test"))
    assert metrics["accuracy"] == pytest.approx((logits.argmax(dim=1) == labels).float().mean().item())
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


@pytest.mark.parametrize("task", SOURCES)
def test_the_ranks_together_score_every_example_once(lra_store: Stores, task: str):
    arena = build(lra_store, task)
    model = arena.build_model()
    whole = sums_of(arena, model, "test")
    parts = [sums_of(arena, model, "test", rank, 3) for rank in range(3)]
    assert whole["examples"] == len(arena.store.split("test"))
    assert {name: sum(part[name] for part in parts) for name in whole} == pytest.approx(whole, rel=1e-4)
    other = sums_of(build(lra_store, task, train__micro_batch_size=1), model, "test")
    assert other == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("task", ["lra/text", "lra/listops", "lra/retrieval"])
@pytest.mark.parametrize("method", ["t1", "t2", "vanilla", "performer", "cosformer"])
def test_padding_changes_nothing(lra_store: Stores, task: str, method: str):
    arena = build(lra_store, task, model__preset=f"{method}-{task.replace('/', '-')}")
    torch.manual_seed(0)
    model = arena.build_model().eval()
    examples = arena.examples("valid")
    numbers = list(range(min(3, len(examples))))
    resident = arena.feeds(torch.device("cpu")).batch({"rows": torch.tensor(numbers)}, "valid")
    assert resident["input_ids"].shape[1] == arena.store.max_length
    batches = [arena.batch(examples, numbers), resident, arena.batch(examples, numbers[:1])]
    with torch.no_grad():
        tight, wide, alone = (arena.logits(model, batch) for batch in batches)
    torch.testing.assert_close(wide, tight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone, tight[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", SOURCES)
def test_an_epoch_has_every_example_once(lra_store: Stores, task: str):
    arena = build(lra_store, task)
    train = arena.store.split("train")
    batch = arena.train_batch(range(arena.num_train_samples))
    stored = sorted((tuple(train.sequence(number).tolist()), train.labels[number]) for number in range(len(train)))
    masks = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    seen = [
        (tuple(ids[mask.bool()].tolist()), label.item())
        for ids, mask, label in zip(batch["input_ids"], masks, batch["labels"], strict=True)
    ]
    assert sorted(seen) == stored
    assert arena.targets_in(batch) == len(train)
    assert arena.tokens_in(batch) == train.tokens
    again = build(lra_store, task).train_batch(range(arena.num_train_samples))
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    other = build(lra_store, task, seed=1).train_batch(range(arena.num_train_samples))
    assert not torch.equal(batch["input_ids"], other["input_ids"])


def test_batches_are_as_long_as_their_longest(lra_store: Stores):
    arena = build(lra_store, "lra/text")
    examples, model = arena.examples("test"), ByLength(2)
    longest = int(examples.lengths.argmax())
    batch = arena.batch(examples, [0, longest])
    assert batch["input_ids"].shape == (2, 4000)
    assert batch["attention_mask"].sum(dim=1).tolist() == [examples.lengths[0, 0], 4000]
    assert (batch["input_ids"][0, examples.lengths[0, 0] :] == 0).all()
    sums_of(arena, model, "test")
    assert model.widths == sorted(model.widths)  # so little is padded because neighbours are of similar length


def test_a_limited_validation_never_limits_the_test(lra_store: Stores):
    arena = build(lra_store, "lra/listops", lra__valid_examples=3)
    assert sums_of(arena, ByLength(10), "valid")["examples"] == 3
    assert sums_of(arena, ByLength(10), "test")["examples"] == 6
    assert "3 validation examples" in arena.protocol


# Models


def test_skyformers_tables_and_parameter_counts(lra_store: Stores):
    counts = {
        "lra/text": 370_562,
        "lra/listops": 209_802,
        "lra/retrieval": 395_138,
        "lra/pathfinder": 173_954,
        "lra/image": 158_602,
    }
    for task, count in counts.items():
        preset = f"vanilla-{task.replace('/', '-')}"
        arena = build(lra_store, task, model__preset=preset, model__hidden_size=None, model__intermediate_size=None)
        assert sum(parameter.numel() for parameter in arena.build_model().parameters()) == count, task


def test_every_method_has_a_preset_for_every_task():
    for task in SOURCES:
        assert {f"{method}-{task.replace('/', '-')}" for method in METHODS} <= set(list_presets())


def test_a_preset_made_for_something_else_grows_to_fit(lra_store: Stores):
    arena = build(lra_store, "lra/text", model__preset="t2-lra-image")
    config = arena.build_model().config
    assert (config.vocab_size, config.max_position_embeddings, config.num_labels) == (257, 4000, 2)
    tiny = build(lra_store, "lra/listops", model__preset="t2-tiny").build_model().config
    assert (tiny.causal, tiny.max_position_embeddings, tiny.num_labels) == (False, 2000, 10)


def test_positions_that_are_too_few_are_refused(lra_store: Stores):
    with pytest.raises(ConfigError, match=r"model.max_position_embeddings \(100\) is shorter .* up to 2000 tokens"):
        build(lra_store, "lra/listops", model__max_position_embeddings=100).build_model()


def test_pixels_as_numbers(lra_store: Stores):
    """Scaled by the largest pixel, not by the room in Skyformer's table of 512; bytes are no amounts."""
    arena = build(lra_store, "lra/pathfinder", model__embedding="number")
    model = arena.build_model()
    assert model.config.vocab_size == 256
    arena.loss_sum(model, arena.train_batch([0, 1])).backward()
    assert model.get_input_embeddings().weight.grad.any()
    with pytest.raises(ConfigError, match="lra/text are not amounts"):
        build(lra_store, "lra/text", model__embedding="number").build_model()


def test_larger_pathfinders_take_more_positions(tmp_path: Path):
    store = prepare("lra/pathfinder", tmp_path / "store", limit=2, size=64, processes=1)
    arena = LongRangeArena(lra_config("lra/pathfinder", store))
    model = arena.build_model()
    assert model.config.max_position_embeddings == 64 * 64
    assert model(**{k: v for k, v in arena.train_batch([0]).items() if k != "labels"}).logits.shape == (1, 2)


@pytest.mark.parametrize("task", SOURCES)
def test_the_released_configuration_trains(lra_store: Stores, task: str):
    config = load_config(task.replace("lra/", "lra/release/"), [f"data.store={lra_store(task)}"])
    arena = LongRangeArena(config)
    model = arena.build_model()
    assert model.config.hidden_size == 128
    assert model.config.mixers == ["diag"] * (model.config.num_hidden_layers // 2) + ["norm"] * (
        model.config.num_hidden_layers // 2
    )
    assert model.config.pooling == ("last" if task == "lra/pathfinder" else "mean")
    assert (model.config.norm, model.config.options_of("norm")["xnorm"]) == ("batch", "batch")
    arena.loss_sum(model, arena.train_batch([0])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("task", SOURCES)
def test_the_set_up_of_the_papers_rows_trains(lra_store: Stores, task: str):
    arena = LongRangeArena(load_config(task.replace("lra/", "lra/authors/"), [f"data.store={lra_store(task)}"]))
    model = arena.build_model()
    pixels = task in ("lra/image", "lra/pathfinder")
    made = model.config
    assert (made.norm, made.position_embedding, made.position) == ("batch", "sinusoidal", "rope")
    assert model.config.options_of("norm")["xnorm"] == "batch"
    assert (model.config.embedding == "number") == pixels
    arena.loss_sum(model, arena.train_batch([0])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("task", SOURCES)
def test_the_tuned_set_up_is_the_authors_but_for_a_few_settings(lra_store: Stores, task: str):
    tuned, authors = (
        load_config(task.replace("lra/", f"lra/{setup}/"), [f"data.store={lra_store(task)}"])
        for setup in ("tuned", "authors")
    )
    chosen = {
        "lra/image": {"model.dropout"},
        "lra/pathfinder": {"model.pooling"},
        "lra/text": {"model.position_embedding", "model.scale_embedding"},
    }
    assert set(differences(authors, tuned)) == {"optim.lr", *chosen.get(task, ())}
    arena = LongRangeArena(tuned)
    model = arena.build_model()
    arena.loss_sum(model, arena.train_batch([0])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_model_without_positions_is_warned_of(lra_store: Stores, caplog: pytest.LogCaptureFixture):
    """The tuned recipe of Text leaves them out for T1 and T2, which rotate."""
    data = f"data.store={lra_store('lra/text')}"
    LongRangeArena(load_config("lra/tuned/text", [data])).build_model()
    assert "positions" not in caplog.text
    LongRangeArena(load_config("lra/tuned/text", [data, "model.preset=vanilla-lra-text"])).build_model()
    assert "vanilla-lra-text has no positions" in caplog.text


# Protocols


def test_compat_validates_text_on_its_test_set(lra_store: Stores):
    honest, compat = (build(lra_store, "lra/text", lra__protocol=name) for name in ("skyformer", "lra_compat"))
    store = honest.store
    assert (honest.num_train_samples, compat.num_train_samples) == (18, 20)
    assert compat.examples("valid").labels.tolist() == store.split("test").labels.tolist()
    joined = compat.examples("train")
    assert joined.sequence(18).tolist() == store.split("valid").sequence(0).tolist()
    assert joined.lengths.tolist() == store.split("train").lengths.tolist() + store.split("valid").lengths.tolist()
    compat.train_batch(range(20))
    model = honest.build_model()
    assert sums_of(compat, model, "valid") == sums_of(compat, model, "test")
    assert "validated on the test set" in compat.protocol
    assert "checkpoint chosen on the test split, then scored on the test split again" in compat.protocol
    assert "checkpoint chosen on the validation split, test split scored once with it" in honest.protocol
    assert "a tenth of the source's train set" in honest.protocol
    assert load_config("lra/text").lra.protocol == LRASection().protocol == "skyformer"
    others = [build(lra_store, task, lra__protocol="lra_compat") for task in ("lra/listops", "lra/image")]
    assert [arena.num_train_samples for arena in others] == [6, 18]


def test_compat_pools_over_the_padded_length(lra_store: Stores):
    honest, compat = (build(lra_store, "lra/listops", lra__protocol=name) for name in ("skyformer", "lra_compat"))
    assert honest.build_model().config.pooling == "mean"
    torch.manual_seed(0)
    model = compat.build_model().eval()
    assert model.config.pooling == "padded_mean"
    batch = compat.train_batch([0, 1])
    hidden = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    expected = (hidden * batch["attention_mask"][..., None]).sum(dim=1) / 2048
    torch.testing.assert_close(
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, model.classifier(expected)
    )
    assert "divided by the padded length" in compat.protocol
    assert "mean over real tokens" in honest.protocol


def dots(folder: Path, *places: int) -> Path:
    """A store of black images with a bright dot each."""
    with ExampleWriter(folder, Form("lra/image", vocab_size=256, num_labels=10, max_length=1024)) as writer:
        for split in ("train", "valid", "test"):
            for number, place in enumerate(places):
                pixels = np.zeros(1024, dtype=np.uint8)
                pixels[place] = 200
                writer.append(split, [pixels], number % 10)
    return folder


def test_compat_masks_black_pixels_and_keeps_the_places_of_the_others(tmp_path: Path):
    store = dots(tmp_path / "dots", 3, 700)
    logits = {}
    for protocol in ("skyformer", "lra_compat"):
        arena = LongRangeArena(
            lra_config("lra/image", store, lra__protocol=protocol, model__preset="vanilla-lra-image")
        )
        torch.manual_seed(0)
        model = arena.build_model().eval()
        batch = arena.batch(arena.examples("valid"), [0, 1])
        assert ("attention_mask" in batch) == (protocol == "lra_compat")
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits[protocol] = model(**inputs).logits
        if protocol == "lra_compat":
            assert batch["attention_mask"].sum(dim=1).tolist() == [1, 1]
            assert arena.tokens_in(batch) == 2
            # One pixel is left; what the model makes of it alone depends on where it was.
            without_places = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
            torch.testing.assert_close(without_places[0], without_places[1])
            assert not torch.allclose(logits[protocol][0], logits[protocol][1], atol=1e-6)
    assert not torch.allclose(logits["skyformer"], logits["lra_compat"], atol=1e-6)


def test_the_protocol_says_which_data_it_is(tmp_path: Path):
    store = prepare("lra/retrieval", tmp_path / "store", source=write_pairs(tmp_path / "pairs"), limit=5)
    protocol = LongRangeArena(lra_config("lra/retrieval", store)).protocol
    assert "at most 5 examples per split" in protocol
    assert "not the published data: train has 12 of 147,086" in protocol


# Bad input


def test_a_store_of_another_task(lra_store: Stores, byte_store: Path):
    with pytest.raises(ConfigError, match=r"prepared for lra/text, the task is lra/image.*prepare lra/image --source"):
        LongRangeArena(lra_config("lra/image", lra_store("lra/text")))
    with pytest.raises(ConfigError, match=r"holds running text, not labelled examples"):
        LongRangeArena(lra_config("lra/image", byte_store))
    with pytest.raises(DataError, match=r"absent does not exist"):
        LongRangeArena(lra_config("lra/image", byte_store / "absent"))


def test_a_damaged_store_is_found_before_training(tmp_path: Path):
    store = dots(tmp_path / "dots", 3, 700)
    path = store / "test-ids-00000.bin"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"test-ids-00000.bin was altered"):
        LongRangeArena(lra_config("lra/image", store))


def test_no_store_and_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"lra/image cannot be generated: it needs a source"):
        LongRangeArena(lra_config("lra/image", "x", data__store=None))
    arena = LongRangeArena(lra_config("lra/pathfinder", "x", data__store=None, lra__limit_examples=3))
    assert arena.num_train_samples == 3
    assert arena.store.path.parent == tmp_path / "stores"
