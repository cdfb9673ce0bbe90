"""From GLUE's files to an example store of one of the seven tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from transnormer.data.example_plan import Plan, Progress, missing_examples, write_store
from transnormer.data.example_source import Example, Part, Source, as_one_split
from transnormer.data.example_writer import Form
from transnormer.data.glue.encoding import Encoder
from transnormer.data.glue.source import is_labelled, read_source
from transnormer.data.glue.spec import Spec, spec_of
from transnormer.data.glue.tsv import Row
from transnormer.data.tokenizer_choice import choose_tokenizer
from transnormer.errors import ConfigError
from transnormer.files import require_free

MAX_LENGTH = 512  # RoBERTa's, to which the authors' toolkit fine-tunes
_SHORTEST = 8
_QQP_OF_DATASETS = 363_846  # training pairs there: three with an empty question are left out


def prepare(
    task: str,
    out: str | Path,
    *,
    source: str | Path | None,
    tokenizer: str | None,
    max_length: int = MAX_LENGTH,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the example store of a task and returns its path. The same arguments give the same bytes, every time.

    task        glue/mnli, glue/qnli, glue/qqp, glue/sst2, glue/mrpc, glue/cola, glue/rte
    source      the folder with its files
    tokenizer   roberta:FOLDER, or a folder with a tokenizer.json that knows <s> and </s>
    max_length  longer examples are cut, of a pair the longer text
    limit       at most so many examples in each split, evenly spaced over the source
    progress    called now and then with the examples read and their total
    """
    out = Path(out)
    require_free(out)
    write_store(plan(task, source, tokenizer, max_length, limit), out, progress)
    return out


def plan(
    task: str,
    source: str | Path | None,
    tokenizer: str | None,
    max_length: int = MAX_LENGTH,
    limit: int | None = None,
) -> Plan:
    """Reads and checks all files; nothing is tokenized yet."""
    spec = spec_of(task)
    command = f"`transnormer data prepare {task} --source FOLDER --tokenizer roberta:FOLDER --out STORE`"
    if source is None:
        raise ConfigError(f"{task} needs a source", f"{command}; {spec.about_source}")
    if tokenizer is None:
        raise ConfigError(f"{task} needs a tokenizer, that of the pre-trained model", command)
    if max_length < _SHORTEST:
        raise ConfigError(f"a max_length of {max_length} leaves no room for a text", "use e.g. 128")
    choice = choose_tokenizer(tokenizer)
    if choice.kind in ("bpe", "word"):
        raise ConfigError(
            f"the tokenizer '{choice.kind}' would be trained on {task}", "use that of a pre-trained model"
        )
    encoder = Encoder(choice.build(lambda: ()), max_length)
    texts = read_source(spec, Path(source))
    parts = {
        split: Part(len(rows), _reader(encoder, rows), as_one_split(split, len(rows)))
        for split, rows in texts.rows.items()
    }
    origin = {
        "sources": texts.files,
        "tokenizer": choice.description(),
        "max_length": max_length,
        "unlabelled": [split for split in parts if not is_labelled(split)],
    }
    opened = Source(parts, texts.split_rule, origin)
    form = Form(task, len(encoder.tokenizer), len(spec.labels), max_length, tokenizer=encoder.tokenizer)
    return Plan.of(form, opened, limit, _differences(spec, opened))


def _reader(encoder: Encoder, rows: list[Row]) -> Callable[[], Iterator[Example]]:
    def read() -> Iterator[Example]:
        for ids, (_, label) in zip(encoder([texts for texts, _ in rows]), rows, strict=True):
            yield (ids,), label

    return read


def _differences(spec: Spec, source: Source) -> dict[str, str]:
    published = dict(spec.published)
    if spec.name == "glue/qqp" and source.parts["train"].count == _QQP_OF_DATASETS:
        published["train"] = _QQP_OF_DATASETS
    return missing_examples(source, published)
