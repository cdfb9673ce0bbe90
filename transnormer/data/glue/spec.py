"""What the seven tasks are: their columns and labels, how many examples were published, and how they are scored."""

from __future__ import annotations

from dataclasses import dataclass

from transnormer.errors import ConfigError, did_you_mean

Names = tuple[str, ...]  # of one column: GLUE's own first, then those of other editions

FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
_TWO_GENRES = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_NLI = ("entailment", "not_entailment")
PAGE = "https://gluebenchmark.com/tasks"


@dataclass(frozen=True)
class Spec:
    """One task. `labels` are the words of its files, by class; `metrics` begin with the one that the paper reports."""

    name: str
    folder: str  # of the published download
    summary: str
    texts: tuple[Names, ...]
    label: Names = ("label",)
    labels: tuple[str, ...] = ("0", "1")
    metrics: tuple[str, ...] = ("accuracy",)
    files: tuple[tuple[str, str], ...] = tuple(FILES.items())
    published: tuple[tuple[str, int], ...] = ()
    came_as: str = ""  # what the published files are called before they are unpacked or split, with their sha256
    # Where files to be submitted have another name than the folder: by split.
    submitted: tuple[tuple[str, str], ...] = ()

    @property
    def about_source(self) -> str:
        """Where the files are to be had, and what they are called."""
        files = ", ".join(name for _, name in self.files)
        return (
            f"the source is {self.folder}/ with {files} ({PAGE}), {self.came_as}, or a folder that the `datasets` "
            "package saved with save_to_disk"
        )

    def submission(self, split: str) -> str:
        """The name of the file with predictions for a split that GLUE's server expects."""
        return f"{dict(self.submitted).get(split, self.folder)}.tsv"


SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "glue/mnli",
            "MNLI",
            "whether a premise entails a hypothesis, contradicts it, or neither",
            texts=(("sentence1", "premise"), ("sentence2", "hypothesis")),
            label=("gold_label", "label"),
            labels=("entailment", "neutral", "contradiction"),
            files=tuple(_TWO_GENRES.items()),
            published=(("train", 392_702), ("valid", 9_815), ("valid_mismatched", 9_832)),
            came_as="from MNLI.zip, sha256 e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
            submitted=(("test", "MNLI-m"), ("test_mismatched", "MNLI-mm")),
        ),
        Spec(
            "glue/qnli",
            "QNLI",
            "whether a sentence holds the answer to a question",
            texts=(("question",), ("sentence",)),
            labels=_NLI,
            published=(("train", 104_743), ("valid", 5_463)),
            came_as="from QNLIv2.zip, sha256 e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        ),
        Spec(
            "glue/qqp",
            "QQP",
            "whether two questions ask the same",
            texts=(("question1",), ("question2",)),
            label=("is_duplicate", "label"),
            metrics=("accuracy", "f1"),
            published=(("train", 363_849), ("valid", 40_430)),
            came_as="from QQP-clean.zip, sha256 40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        ),
        Spec(
            "glue/sst2",
            "SST-2",
            "the sentiment of a sentence of a film review",
            texts=(("sentence",),),
            published=(("train", 67_349), ("valid", 872)),
            came_as="from SST-2.zip, sha256 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        ),
        Spec(
            "glue/mrpc",
            "MRPC",
            "whether two sentences of the news say the same",
            texts=(("#1 String", "sentence1"), ("#2 String", "sentence2")),
            label=("Quality", "label"),
            metrics=("f1", "accuracy"),
            published=(("train", 3_668), ("valid", 408)),
            came_as="or Microsoft's msr_paraphrase_train.txt, sha256 "
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89, and msr_paraphrase_test.txt, sha256 "
            "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784, with GLUE's list dev_ids.tsv, sha256 "
            "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
        ),
        Spec(
            "glue/cola",
            "CoLA",
            "whether a sentence is acceptable English",
            texts=(("sentence",),),
            metrics=("matthews", "accuracy"),
            published=(("train", 8_551), ("valid", 1_043)),
            came_as="from CoLA.zip, sha256 f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
        ),
        Spec(
            "glue/rte",
            "RTE",
            "whether a text entails a hypothesis",
            texts=(("sentence1", "premise"), ("sentence2", "hypothesis")),
            labels=_NLI,
            published=(("train", 2_490), ("valid", 277)),
            came_as="from RTE.zip, sha256 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
        ),
    )
}


def spec_of(task: str) -> Spec:
    """The spec of a task by name."""
    if task not in SPECS:
        raise ConfigError(f"unknown GLUE task '{task}'", did_you_mean(task, SPECS))
    return SPECS[task]
