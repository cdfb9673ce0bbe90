"""GLUE's files: every published format, the marks of sentences, and what is wrong with a file by its line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from glue_files import LABELLED, TASKS, WORDS, example, write_original_mrpc, write_task
from hypothesis import given
from hypothesis import strategies as st

from transnormer.data.examples import ExampleStore
from transnormer.data.glue.encoding import Encoder, shares
from transnormer.data.glue.prepare import plan, prepare
from transnormer.data.glue.spec import SPECS, spec_of
from transnormer.data.open_store import open_store
from transnormer.data.tokenizers import load_tokenizer, roberta_bpe
from transnormer.errors import ConfigError, DataError

WORD = st.sampled_from(["good", "a film", "naïve", "x" * 30, "\u2009", "1 2 3 4 5"])


@pytest.fixture
def bpe(glue_bpe: Path) -> Path:
    return glue_bpe


@pytest.fixture(scope="module")
def tokenizer(glue_bpe: Path):
    return roberta_bpe(glue_bpe / "vocab.json", glue_bpe / "merges.txt")


@pytest.fixture
def make(tmp_path: Path, bpe: Path) -> Callable[..., ExampleStore]:
    def build(task: str, source: Path, **options) -> ExampleStore:
        out = prepare(f"glue/{task}", tmp_path / "store", source=source, tokenizer=f"roberta:{bpe}", **options)
        return ExampleStore.open(out)

    return build


def texts_of(store: ExampleStore, split: str) -> list[tuple[tuple[str, ...], int]]:
    """The texts and labels of a split, read back from ids."""
    tokenizer, examples = load_tokenizer(store.tokenizer_path), store.split(split)
    read = []
    for number in range(len(examples)):
        text = tokenizer.decode(examples.sequence(number).tolist())
        assert text.startswith("<s>")
        assert text.endswith("</s>")
        read.append((tuple(text[3:-4].split("</s></s>")), int(examples.labels[number])))
    return read


def check(store: ExampleStore, task: str) -> None:
    assert set(store.splits) == {split for split, _ in spec_of(store.task).files}
    for split in store.splits:
        expected = [example(task, split, number) for number in range(WORDS[split])]
        if split.startswith("test"):
            expected = [(texts, 0) for texts, _ in expected]
        assert texts_of(store, split) == expected
    assert store.meta["unlabelled"] == [split for split in store.splits if split.startswith("test")]


@pytest.mark.parametrize("task", TASKS)
def test_published_files_become_a_store(make, tmp_path: Path, task: str):
    folder = SPECS[f"glue/{task}"].folder
    store = make(task, write_task(tmp_path / folder, task).parent)
    store.verify()
    check(store, task)
    assert open_store(store.path).tokenizer_path == store.path / "tokenizer"
    assert store.meta["differs_from_published"]["train"].startswith("40 of ")


@pytest.mark.parametrize("task", TASKS)
def test_a_data_set_saved_by_datasets_is_the_same(make, tmp_path: Path, task: str):
    import datasets

    spec = SPECS[f"glue/{task}"]
    names = {"valid": "validation"} if task != "mnli" else {"valid": "validation_matched", "test": "test_matched"}
    names = {**names, "valid_mismatched": "validation_mismatched"}
    labels = spec.labels if "0" not in spec.labels else ("no", "yes")
    saved = {}
    for split, _ in spec.files:
        rows = [example(task, split, number) for number in range(WORDS[split])]
        columns = {column[-1]: [texts[which] for texts, _ in rows] for which, column in enumerate(spec.texts)}
        columns["label"] = [-1 if split.startswith("test") else label for _, label in rows]
        columns["idx"] = list(range(len(rows)))
        saved[names.get(split, split)] = datasets.Dataset.from_dict(columns).cast_column(
            "label", datasets.ClassLabel(names=list(labels))
        )
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "saved", num_shards=dict.fromkeys(saved, 2))
    check(make(task, tmp_path / "saved"), task)


def test_a_saved_data_set_with_other_labels_is_refused(bpe: Path, tmp_path: Path):
    import datasets

    labels = datasets.ClassLabel(names=["not_entailment", "entailment"])
    rows = {"sentence1": ["a"], "sentence2": ["b"], "label": [0]}
    split = datasets.Dataset.from_dict(rows).cast_column("label", labels)
    datasets.DatasetDict({"train": split, "validation": split}).save_to_disk(tmp_path / "rte")
    with pytest.raises(DataError, match=r"dataset_info.json: the labels are not_entailment, entailment"):
        plan("glue/rte", tmp_path / "rte", f"roberta:{bpe}")
    split.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": split}).save_to_disk(tmp_path / "part")
    for folder, message in {"one": "a saved data set of one split", "part": "has no split 'validation'"}.items():
        with pytest.raises(DataError, match=message):
            plan("glue/rte", tmp_path / folder, f"roberta:{bpe}")
    info = tmp_path / "rte" / "train" / "state.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "_indices_files": ["x"]}))
    with pytest.raises(DataError, match="selection"):
        plan("glue/rte", tmp_path / "rte", f"roberta:{bpe}")


def test_mrpc_from_its_original_files(make, bpe: Path, tmp_path: Path):
    store = make("mrpc", write_original_mrpc(tmp_path / "MRPC"))
    rows = [example("mrpc", "train", number) for number in range(WORDS["train"])]
    assert texts_of(store, "valid") == rows[5:15]
    assert texts_of(store, "train") == rows[:5] + rows[15:]
    assert len(store.split("test")) == WORDS["valid"]
    (tmp_path / "MRPC" / "dev_ids.tsv").unlink()
    with pytest.raises(DataError, match=r"dev_ids.tsv is missing"):
        plan("glue/mrpc", tmp_path / "MRPC", f"roberta:{bpe}")


def test_reduced_editions_with_bare_columns(make, tmp_path: Path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("premise\thypothesis\tlabel\na b\tc\tneutral\nd\te\tentailment")
    store = make("mnli", tmp_path)
    assert store.splits == ["train", "valid"]
    assert texts_of(store, "valid") == [(("a b", "c"), 1), (("d", "e"), 0)]
    assert store.meta["differs_from_published"] == {
        "train": "2 of 392,702",
        "valid": "2 of 9,815",
        "valid_mismatched": "0 of 9,832",
    }


LINE = {"sst2": 3, "cola": 2, "rte": 3, "qqp": 3, "mnli": 3}


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("sst2", b"one column", "1 columns instead of 2"),
        ("sst2", b"fine\t1\t2", "3 columns instead of 2"),
        ("sst2", b"fine\t2", "the label is '2'"),
        ("sst2", b"  \t1", "'sentence' is empty"),
        ("sst2", b"na\xefve\t1", "byte 3 is not UTF-8"),
        ("cola", b"gj04\t1\tfine", "3 columns instead of 4"),
        ("cola", b"gj04\tyes\t\tfine", "the label is 'yes'"),
        ("rte", b"1\ta\tb\tneutral", "the label is 'neutral'"),
        ("rte", b"1\ta\t\tentailment", "'sentence2' is empty"),
        ("qqp", b"1\t2\t3\ta", "4 columns instead of 6"),
        ("qqp", b"1\t2\t3\ta\tb\t-1", "the label is '-1'"),
        ("mnli", b"\t".join([b"x"] * 11 + [b"-"]), "the label is '-'"),
    ],
)
def test_a_wrong_line_is_named(bpe: Path, tmp_path: Path, task: str, line: bytes, message: str):
    path = write_task(tmp_path, task) / "train.tsv"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[LINE[task] - 1] = line + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError) as caught:
        plan(f"glue/{task}", tmp_path, f"roberta:{bpe}")
    assert caught.value.message == f"{path} line {LINE[task]}: {message}"
    assert caught.value.hint


def test_a_wrong_file_is_named(bpe: Path, tmp_path: Path):
    roberta, folder = f"roberta:{bpe}", write_task(tmp_path / "SST-2", "sst2")
    (folder / "dev.tsv").write_text("text\tlabel\nx\t1\n")
    with pytest.raises(DataError, match=r"dev.tsv line 1: no column 'sentence' \(the columns are: text, label"):
        plan("glue/sst2", folder, roberta)
    (folder / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(DataError, match=r"dev.tsv has no examples"):
        plan("glue/sst2", folder, roberta)
    (folder / "dev.tsv").write_text("")
    with pytest.raises(DataError, match=r"dev.tsv is empty"):
        plan("glue/sst2", folder, roberta)
    (folder / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"has no dev.tsv .*gluebenchmark.com/tasks"):
        plan("glue/sst2", folder, roberta)
    with pytest.raises(DataError, match=r"has no train.tsv .*QNLI/ with train.tsv, dev.tsv, test.tsv"):
        plan("glue/qnli", tmp_path, roberta)
    with pytest.raises(ConfigError, match=r"unknown GLUE task 'glue/sst' \(did you mean 'glue/sst2'"):
        plan("glue/sst", tmp_path, roberta)
    with pytest.raises(ConfigError, match="no <s> and </s>"):
        plan("glue/qnli", tmp_path, "byte")


def test_test_files_keep_their_order_and_may_have_empty_texts(make, bpe: Path, tmp_path: Path):
    path = write_task(tmp_path, "cola") / "test.tsv"
    path.write_text("index\tsentence\n0\tfine\n1\t\n")
    assert texts_of(make("cola", tmp_path), "test") == [(("fine",), 0), (("",), 0)]
    path.write_text("index\tsentence\n1\tfine\n0\tfine\n")
    with pytest.raises(DataError, match=r"test.tsv line 2: the index is '1', not 0"):
        plan("glue/cola", tmp_path, f"roberta:{bpe}")


def test_the_few_broken_lines_of_qqp_are_left_out(make, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write_task(tmp_path, "qqp") / "train.tsv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows * 26, "7\t8\t9\tcut off"]))
    assert len(make("qqp", tmp_path).split("train")) == 26 * len(rows)
    assert "1 broken lines are left out" in caplog.text


@given(st.integers(0, 40), st.integers(0, 40), st.integers(4, 30))
def test_the_longer_of_a_pair_gives_way(first: int, second: int, room: int):
    kept = shares(first, second, room)
    assert sum(kept) == min(first + second, room)
    assert kept[0] <= first
    assert kept[1] <= second
    if first + second > room:  # one token at a time from the longer ends in the same place
        assert abs(kept[0] - kept[1]) <= 1 or min(kept) == min(first, second)


@given(st.lists(WORD, max_size=6), st.lists(WORD, min_size=1, max_size=6) | st.none(), st.integers(8, 24))
def test_ids_are_those_of_transformers(tokenizer, first: list[str], second: list[str] | None, length: int):
    texts = (" ".join(first),) if second is None else (" ".join(first), " ".join(second))
    (ids,) = Encoder(tokenizer, length)([texts])
    expected = tokenizer(*texts, truncation="longest_first", max_length=length)["input_ids"]
    assert ids.tolist() == expected


def test_the_name_of_a_mark_in_a_text_is_text(tokenizer):
    (ids,) = Encoder(tokenizer, 40)([("a </s> b", "<s>")])
    assert [(ids == mark).sum() for mark in (tokenizer.cls_token_id, tokenizer.sep_token_id)] == [1, 3]


def test_no_example_is_longer_than_asked(make, tmp_path: Path):
    store = make("qnli", write_task(tmp_path, "qnli"), max_length=12, limit=9)
    assert store.max_length == 12
    assert store.split("train").lengths.max() == 12
    assert [len(store.split(split)) for split in store.splits] == [9, 9, 7]


def test_every_format_is_covered():
    assert set(LABELLED) == set(TASKS)


def test_it_is_said_where_the_files_are_to_be_had_and_how_to_know_them():
    for spec in SPECS.values():
        assert re.search(r"gluebenchmark\.com/tasks\), .*sha256 [0-9a-f]{64}", spec.about_source), spec.name
    assert "msr_paraphrase_train.txt" in SPECS["glue/mrpc"].about_source


@pytest.mark.parametrize(("folder", "task"), [("CoLA", "cola"), ("SST-2", "sst2"), ("MRPC", "mrpc"), ("RTE", "rte")])
def test_real_files_are_the_published_ones(real_data: Callable[[str], Path], tmp_path: Path, folder: str, task: str):
    source, bpe = real_data(f"glue/{folder}"), real_data("gpt2")
    planned = plan(f"glue/{task}", source, f"roberta:{bpe}")
    assert "differs_from_published" not in planned.meta
    assert planned.form.vocab_size == 50_265
