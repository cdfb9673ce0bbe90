"""Tiny GLUE downloads in their published formats, and a tokenizer of GPT-2's kind that needs no download."""

from __future__ import annotations

import json
from pathlib import Path

from transnormer.data.glue.spec import SPECS
from transnormer.data.tokenizers import train_bpe

TASKS = [name.partition("/")[2] for name in SPECS]
WORDS = {"train": 40, "valid": 12, "valid_mismatched": 10, "test": 7, "test_mismatched": 5}  # examples in each split

# Columns of each published file, {0} and {1} for the texts and {label} for the label.
_MNLI = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"]
_MNLI += ["sentence1_parse", "sentence2_parse", "sentence1", "sentence2"]
LABELLED = {
    "mnli": {**dict.fromkeys(_MNLI, "( x )"), "sentence1": "{0}", "sentence2": "{1}", "label1": "neutral"},
    "qnli": {"index": "{n}", "question": "{0}", "sentence": "{1}", "label": "{label}"},
    "qqp": {"id": "9{n}", "qid1": "1", "qid2": "2", "question1": "{0}", "question2": "{1}", "is_duplicate": "{label}"},
    "sst2": {"sentence": "{0} ", "label": "{label}"},
    "mrpc": {"Quality": "{label}", "#1 ID": "1{n}", "#2 ID": "2{n}", "#1 String": "{0}", "#2 String": "{1}"},
    "cola": {"": "gj04", "label": "{label}", "mark": "", "sentence": "{0}"},
    "rte": {"index": "{n}", "sentence1": "{0}", "sentence2": "{1}", "label": "{label}"},
}
LABELLED["mnli"]["gold_label"] = "{label}"
UNLABELLED = {
    "mnli": {**dict.fromkeys(_MNLI, "( x )"), "index": "{n}", "sentence1": "{0}", "sentence2": "{1}"},
    "qnli": {"index": "{n}", "question": "{0}", "sentence": "{1}"},
    "qqp": {"id": "{n}", "question1": "{0}", "question2": "{1}"},
    "sst2": {"index": "{n}", "sentence": "{0}"},
    "mrpc": {"index": "{n}", "#1 ID": "1{n}", "#2 ID": "2{n}", "#1 String": "{0}", "#2 String": "{1}"},
    "cola": {"index": "{n}", "sentence": "{0}"},
    "rte": {"index": "{n}", "sentence1": "{0}", "sentence2": "{1}"},
}
ENDS = {"mrpc": "\r\n"}


def example(task: str, split: str, number: int) -> tuple[tuple[str, ...], int]:
    """Texts and class: a word tells the class, and quotes are part of a text."""
    spec = SPECS[f"glue/{task}"]
    label = (number + len(split)) % len(spec.labels)
    word = ("good", "bad", "none of both")[label]
    texts = (f'{word} {word} film {number} of "{split}', f"{word}, a naïve answer {number * 7}")
    return texts[: len(spec.texts)], label


def write_split(path: Path, task: str, split: str) -> None:
    columns = (UNLABELLED if split.startswith("test") else LABELLED)[task]
    lines = [] if "" in columns else ["\t".join(columns)]
    for number in range(WORDS[split]):
        texts, label = example(task, split, number)
        word = SPECS[f"glue/{task}"].labels[label]
        values = [value.format(*texts, n=number, label=word) for value in columns.values()]
        lines.append("\t".join(values))
    end = ENDS.get(task, "\n")
    path.write_bytes((end.join(lines) + end).encode())


def write_task(folder: Path, task: str) -> Path:
    """The folder of one task as it is downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in SPECS[f"glue/{task}"].files:
        write_split(folder / name, task, split)
    return folder


def write_original_mrpc(folder: Path) -> Path:
    """Microsoft's two files, with a byte order mark, and GLUE's list of development pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in (("train", "train"), ("test", "valid")):
        path = folder / f"msr_paraphrase_{name}.txt"
        write_split(path, "mrpc", split)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    (folder / "dev_ids.tsv").write_text("".join(f"1{n}\t2{n}\n" for n in range(5, 15)))
    return folder


def write_bpe(folder: Path, texts: list[str] | None = None) -> Path:
    """vocab.json and merges.txt as GPT-2 has them, of a few hundred tokens, learned from texts or from our examples."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = [" ".join(example(task, "train", n)[0]) for task in TASKS for n in range(40)]
    model = json.loads(train_bpe(texts or ours, 320).backend_tokenizer.to_str())["model"]
    specials = {"<pad>", "<eos>", "<mask>"}
    vocabulary = {token: number for token, number in model["vocab"].items() if token not in specials}
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, "<|endoftext|>": len(vocabulary)}))
    merges = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return folder
