"""From text to a submission: pre-train, fine-tune from the weights, choose on the development sets, predict."""

from collections.abc import Callable
from pathlib import Path

import pytest
from glue_files import WORDS, example, write_bpe, write_task
from tiny_run import evaluations

from transnormer.config.load import load_config
from transnormer.data.examples import ExampleStore
from transnormer.data.glue.prepare import prepare as prepare_glue
from transnormer.data.glue.spec import SPECS
from transnormer.data.prepare import prepare
from transnormer.errors import ConfigError, DataError
from transnormer.train.loop import evaluate_run, train
from transnormer.train.prediction import predict_run

TINY = ["model.hidden_size=32", "model.num_attention_heads=2", "model.num_hidden_layers=2", "train.device=cpu"]


@pytest.fixture(scope="module")
def pretrained(glue_bpe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "text.txt").write_text("\n".join(" ".join(example("mnli", "train", n)[0]) for n in range(200)))
    store = prepare("text", folder / "store", tokenizer=f"roberta:{glue_bpe}", source=str(folder / "text.txt"))
    settings = ["model.preset=t2-mlm", f"data.store={store}", "data.sequence_length=32", "optim.warmup_steps=0"]
    config = load_config("mlm/wikitext103", [*settings, *TINY, "train.steps=2", "train.batch_size=4"])
    train(config, folder / "run", show=False)
    return folder / "run"


@pytest.fixture(scope="module")
def tuned(pretrained: Path, glue_store: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("tuned") / "run"
    settings = [f"model.init={pretrained}", f"data.store={glue_store('mnli')}", "train.device=cpu"]
    settings += ["optim.lr=0.005", "glue.epochs=12", "train.batch_size=8", "train.eval_every=20"]
    settings += ["train.save_every=60", "model.dropout=0", "model.attention_dropout=0"]
    train(load_config("glue/mnli", settings), run, show=False)
    return run


def test_fine_tuning_learns_and_scores_both_sets(tuned: Path):
    scores = evaluations(tuned)
    assert [step for step, _ in scores] == [20, 40, 60]
    best = max(metrics["accuracy"] for _, metrics in scores)
    assert best > 0.9  # the first word says the class
    assert {"accuracy", "accuracy_mismatched", "loss"} == scores[0][1].keys()
    scored = evaluate_run(tuned, "valid", "best")
    assert scored["metrics"]["accuracy"] == best
    assert "the other set beside it" in scored["protocol"]
    assert "not the published data: train has 40 of 392,702" in scored["protocol"]


def test_predictions_can_be_submitted(tuned: Path, tmp_path: Path):
    files = predict_run(tuned, tmp_path / "deep" / "out")
    assert [file.name for file in files] == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    for file, split in zip(files, ("test", "test_mismatched"), strict=True):
        header, *lines = file.read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        assert header == "index\tprediction"
        assert [number for number, _ in rows] == [str(number) for number in range(WORDS[split])]
        labels = SPECS["glue/mnli"].labels
        right = [word == labels[example("mnli", split, n)[1]] for n, (_, word) in enumerate(rows)]
        assert sum(right) >= len(right) - 1


def test_only_test_sets_are_predicted(pretrained: Path, tuned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(ConfigError, match="is a run of masked_lm"):
        predict_run(pretrained, tmp_path, "final")
    with pytest.raises(ConfigError, match=r"the labels of glue/mnli's test split are not published"):
        evaluate_run(tuned, "test", "final")
    original = ExampleStore.__init__

    def without_test(self, path, manifest):
        original(self, path, manifest)
        self.meta = {**self.meta, "unlabelled": []}

    monkeypatch.setattr(ExampleStore, "__init__", without_test)
    with pytest.raises(DataError, match=r"has no test set .*test_mismatched.tsv"):
        predict_run(tuned, tmp_path)


def test_every_submission_has_its_published_name():
    names = {split: spec.submission(split) for spec in SPECS.values() for split, _ in spec.files}
    assert names["test_mismatched"] == "MNLI-mm.tsv"
    found = [spec.submission("test") for spec in SPECS.values()]
    assert found == ["MNLI-m.tsv", "QNLI.tsv", "QQP.tsv", "SST-2.tsv", "MRPC.tsv", "CoLA.tsv", "RTE.tsv"]


def test_a_store_of_another_tokenizer_is_refused(pretrained: Path, tmp_path: Path):
    other = write_bpe(tmp_path / "bpe", ["zebra zebra quartz quartz"] * 9)
    source = write_task(tmp_path / "rte", "rte")
    store = prepare_glue("glue/rte", tmp_path / "store", source=source, tokenizer=f"roberta:{other}")
    config = load_config("glue/rte", [f"model.init={pretrained}", f"data.store={store}", "train.device=cpu"])
    with pytest.raises(ConfigError, match=r"the tokenizer of .*store is not that of"):
        train(config, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
