"""`transnormer data`: prepare, show, verify, describe and split stores."""

from __future__ import annotations

import glob
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transnormer.cli import completion
from transnormer.cli.command import Command, Group
from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.cli.data_pieces import join, split
from transnormer.cli.progress import BytesProgress
from transnormer.cli.verbosity import is_quiet, spoken
from transnormer.errors import ConfigError, command

if TYPE_CHECKING:
    from transnormer.data.examples import ExampleStore
    from transnormer.data.store import TokenStore

app = typer.Typer(
    help="Prepare, show, verify and describe stores of text and of examples.", no_args_is_help=True, cls=Group
)
app.command(cls=Command)(spoken(split))
app.command(cls=Command)(spoken(join))

Store = Annotated[Path, typer.Argument(metavar="STORE", help="A folder that `transnormer data prepare` wrote.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of generated or held-out examples (lra).", show_default="0")]
Size = Annotated[int | None, typer.Option(min=1, help="Of lra/pathfinder's images: 32, 64 or 128.", show_default="32")]


def _refuse_own_text(context: typer.Context, name: str | None) -> str | None:
    """Name what --text is for; as a callback it does so before a missing --out is complained of."""
    from transnormer.data.corpora import corpus_names

    if name is None or name in corpus_names() or name.startswith(("lra", "glue")):
        return name
    if not (Path(name).exists() or Path(name).suffix or glob.has_magic(name)):
        return name
    told, pattern = f"'{name}' is no corpus, it names text of your own", name
    if Path(name).is_dir():
        pattern = f"{name.rstrip('/')}/*{_usual_suffix(Path(name))}"
    elif context.params.get("text"):
        # The second of the files by which a shell replaced a pattern without quotes; it may have found more.
        pattern = str(Path(name).with_name(f"*{Path(name).suffix}"))
        told = f"'{name}': one --text takes one name or pattern, and a pattern must stand in quotes"
    raise ConfigError(told, command("data", "prepare", "--text", pattern, "--out", context.params.get("out", "store")))


def _usual_suffix(folder: Path) -> str:
    """The ending that most files in a folder have."""
    found = Counter(path.suffix for path in folder.iterdir() if path.is_file())
    return found.most_common(1)[0][0] if found else ""


@app.command(cls=Command)
@spoken
def prepare(
    out: Annotated[Path, typer.Option(help="The store to write; must be new or empty.")],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            callback=_refuse_own_text,
            autocompletion=completion.prepared,
            help="python, wikitext103, wikitext2, enwik8, enwiki; lra/listops, lra/text, lra/retrieval, "
            "lra/pathfinder, lra/image; glue/mnli, glue/qnli, glue/qqp, glue/sst2, glue/mrpc, glue/cola, glue/rte; "
            "leave it out with --text.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Your own files by pattern, in quotes; may be given again.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where the public files lie: a file or folder.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="byte, bpe, word, gpt2:FOLDER, roberta:FOLDER, or a folder with tokenizer.json.",
            show_default="the corpus's own",
        ),
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Size of a bpe or word vocabulary.")] = None,
    limit_bytes: Annotated[int | None, typer.Option(min=1, help="Train on the first so many bytes only.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many examples of each split (lra, glue).")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest example in tokens, marks included (glue).", show_default="512")
    ] = None,
    seed: Seed = None,
    size: Size = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that work at once (text, lra).", show_default="one per CPU")
    ] = None,
) -> None:
    """Turn text into a token store, or a task of the Long-Range Arena or of GLUE into a store of examples.

    Text is streamed. Stopped or killed, the same command goes on where it was; the store appears once it is whole.

    Example: transnormer data prepare --text "my/*.txt" --tokenizer bpe --vocab-size 8000 --out store

    Example: transnormer data prepare wikitext103 --source wikitext-103/ --out store

    Example: transnormer data prepare lra/listops --out listops

    Example: transnormer data prepare glue/sst2 --source SST-2/ --tokenizer roberta:gpt2 --out sst2
    """
    for_corpora = {"--text": text, "--vocab-size": vocab_size, "--limit-bytes": limit_bytes}
    for_lra = {"--seed": seed, "--size": size}
    if name is not None and name.startswith(("lra", "glue")):
        _refuse(for_corpora, f"is for text, {name} has examples")
        if name.startswith("lra"):
            _refuse({"--tokenizer": tokenizer, "--max-length": max_length}, f"is not for {name}")
            _prepare_examples(name, out, source=source, limit=limit, seed=seed or 0, size=size, processes=processes)
            print_text(f"use it: {command('train', name, '--out', 'run', f'data.store={out}')}")
        else:
            _refuse(for_lra, "is for the lra tasks")
            _refuse({"--processes": processes}, "is for text and the lra tasks")
            options = {"max_length": max_length} if max_length else {}
            _prepare_examples(name, out, source=source, tokenizer=tokenizer, limit=limit, **options)
            arguments = ("model.init=PRETRAINED", f"data.store={out}")
            print_text(f"use it: {command('train', name, '--out', 'run', *arguments)}")
        return
    _refuse({"--limit": limit, **for_lra, "--max-length": max_length}, "is for the lra and glue tasks")
    if text and name not in (None, "text"):
        raise ConfigError(f"--text and the corpus '{name}' are both given", hint="leave one of them out")
    if text and source:
        raise ConfigError("--text and --source are both given", hint="your own files need only --text")
    if not text and name is None:
        raise ConfigError("nothing to prepare", hint="name a corpus, or your own files: --text 'my/*.txt'")
    from transnormer.data.corpora import open_corpus
    from transnormer.files import require_free, require_place_for

    require_free(out)
    require_place_for(out)
    open_corpus(name or "text", text or source)  # says what is missing before anything large is imported
    load_torch()
    from transnormer.data.prepare import prepare as write_store

    with BytesProgress() as progress:
        write_store(
            name or "text",
            out,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            limit_bytes=limit_bytes,
            source=text or source,
            processes=processes,
            progress=progress,
        )
    _describe(out)
    print_text(f"use it: {_training_command(out)}")


@app.command(cls=Command)
@spoken
def show(
    what: Annotated[str, typer.Argument(metavar="NAME|STORE", help="An lra task, or a store of examples.")],
    source: Annotated[str | None, typer.Option(help="Where the public files of the task lie.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="How many examples.", show_default="3, or 36 images")] = None,
    split: Annotated[str | None, typer.Option(help="Of a store.", show_default="train")] = None,
    seed: Seed = None,
    size: Size = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="What the splits share, and what trivial rules reach (lra).")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The contact sheet to draw, where examples are images; with --stats, the record to write.",
            show_default="sheet.png; with --stats, none",
        ),
    ] = None,
) -> None:
    """Show examples: images on a contact sheet, ListOps as trees, texts as they are read or in excerpts.

    With --stats, show what a score means: examples in more than one split, and the test accuracy of trivial rules.
    Without a store, a task is prepared as for training.

    Example: transnormer data show lra/pathfinder --out paths.png

    Example: transnormer data show store --split test --count 5

    Example: transnormer data show lra/listops --stats
    """
    if stats:
        _refuse({"--count": count, "--split": split}, "is for examples, not for --stats")
        _show_stats(what, source, seed, size, out)
        return
    from transnormer.data.examples import ExampleStore
    from transnormer.data.lra.preview import as_text, draw_contact_sheet, is_drawn, source_examples, stored_examples

    if what.startswith("lra/") and not Path(what).is_dir():
        _refuse({"--split": split}, "is for a store")
        task = what
        examples = source_examples(task, source, count or _count(is_drawn(task)), seed or 0, size)
    else:
        _refuse({"--source": source, "--seed": seed, "--size": size}, "is for a task by name, this is a store")
        store = ExampleStore.open(what)
        task = store.task
        if task.startswith("glue/"):
            from transnormer.data.glue.preview import as_text as in_words

            for line in in_words(store, split or "train", stored_examples(store, split or "train", count or 3)):
                print_text(line)
            return
        examples = stored_examples(store, split or "train", count or _count(is_drawn(task)))
    if is_drawn(task):
        sheet = out or Path("sheet.png")
        draw_contact_sheet(task, examples, sheet)
        print_text(f"{len(examples)} images of {task} are in {sheet}")
        return
    for line in as_text(task, examples):
        print_text(line)


@app.command(cls=Command)
@spoken
def verify(
    store: Annotated[Path, typer.Argument(metavar="STORE|DIR", help="A store, or a folder of its pieces.")],
) -> None:
    """Read every byte of a store, or of its pieces, and compare it with the recorded hashes.

    Example: transnormer data verify store
    """
    from transnormer.data.manifest import PIECES_FILE
    from transnormer.data.open_store import open_store
    from transnormer.data.store_pieces import check_pieces

    if (store / PIECES_FILE).is_file():
        print_text(f"{store} is whole: each of {check_pieces(store):,} pieces has its recorded size and sha256")
        return
    open_store(store).verify()
    print_text(f"{store} is whole: every file has its recorded size and sha256")


@app.command(cls=Command)
@spoken
def info(store: Store) -> None:
    """Show the splits and the origin of a store.

    Example: transnormer data info store
    """
    _describe(store)


def _show_stats(what: str, source: str | None, seed: int | None, size: int | None, out: Path | None) -> None:
    from transnormer.data.cache import cached_examples
    from transnormer.data.examples import ExampleStore
    from transnormer.data.lra.prepare import plan
    from transnormer.experiments.data_record import in_words, record_of_data
    from transnormer.files import write_json

    if what.startswith("lra/") and not Path(what).is_dir():
        store = ExampleStore.open(cached_examples(plan(what, source, seed or 0, size=size)))
    else:
        _refuse({"--source": source, "--seed": seed, "--size": size}, "is for a task by name, this is a store")
        store = ExampleStore.open(what)
        if not store.task.startswith("lra/"):
            raise ConfigError(f"--stats is for the lra tasks, {what} is of {store.task}", hint="leave --stats out")
    record = record_of_data(store)
    for line in in_words(record):
        print_text(line)
    if out is not None:
        write_json(out, record)


def _training_command(path: Path) -> str:
    """What to type next: a model of a size for this machine, and windows that fit into every split."""
    load_torch()
    from transnormer.config.load import resolve
    from transnormer.config.schema import TrainSection
    from transnormer.data.store import TokenStore
    from transnormer.train.ranks import runs_on_cuda

    config = resolve("lm/text", on_cpu=not runs_on_cuda(TrainSection())).config
    arguments = [f"data.store={path}", f"model.preset={config.model.preset}"]
    # A window has one token more, its last target.
    longest = min(split.tokens for split in TokenStore.open(path).splits.values()) - 1
    if longest < config.data.sequence_length:
        arguments.append(f"data.sequence_length={2 ** (longest.bit_length() - 1)}")
    names = itertools.chain(["run"], (f"run-{number}" for number in itertools.count(2)))
    run = next(name for name in names if not Path(name).exists())
    return command("train", "lm/text", "--out", run, *arguments)


def _count(drawn: bool) -> int:
    return 36 if drawn else 3


def _refuse(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value not in (None, []):
            raise ConfigError(f"{option} {why}", hint=f"leave {option} out")


def _prepare_examples(name: str, out: Path, **options: Any) -> None:
    from rich.console import Console
    from rich.progress import Progress

    if name.startswith("lra"):
        from transnormer.data.lra.prepare import prepare as write_examples
    else:
        from transnormer.data.glue.prepare import prepare as write_examples  # type: ignore[assignment]

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal or is_quiet()) as bar:
        shown = bar.add_task(name, total=None)
        write_examples(
            name, out, progress=lambda done, total: bar.update(shown, completed=done, total=total), **options
        )
    _describe(out)


def _describe(path: Path) -> None:
    from transnormer.data.examples import ExampleStore
    from transnormer.data.open_store import open_store

    store = open_store(path)
    if isinstance(store, ExampleStore):
        _describe_examples(store)
    else:
        _describe_text(store)
    if rule := store.meta.get("split_rule"):
        print_text(f"splits: {rule}")


def _describe_text(store: TokenStore) -> None:
    rows = [
        (name, f"{split.tokens:,}", f"{split.bytes:,}", f"{split.words:,}", f"{split.bytes / split.tokens:.3f}")
        for name, split in store.splits.items()
    ]
    print_table(["split", "tokens", "bytes", "words", "bytes per token"], rows)
    kind, corpus = store.meta.get("tokenizer", {}).get("kind", "none"), store.meta.get("corpus", "unknown")
    print_text(f"{store.path}: corpus {corpus}, tokenizer {kind}, vocabulary {store.vocab_size:,}")


def _describe_examples(store: ExampleStore) -> None:
    rows = []
    for name in store.splits:
        split = store.split(name)
        shares = [f"{(split.labels == label).mean():.3f}" for label in range(store.num_labels)]
        lengths = f"{split.lengths.min():,} / {split.lengths.mean():,.0f} / {split.lengths.max():,}"
        rows.append((name, f"{len(split):,}", f"{split.tokens:,}", lengths, " ".join(shares)))
    print_table(["split", "examples", "tokens", "length min / mean / max", "share of each label"], rows)
    meta = store.meta
    if "generated" in meta:
        origin = "generated with " + ", ".join(f"{key} {value}" for key, value in meta["generated"].items())
    else:
        origin = "read from " + ", ".join(meta.get("sources", {"unknown files": ""}))
    print_text(f"{store.path}: task {store.task}, {origin}, vocabulary {store.vocab_size:,}")
    if limit := meta.get("limit"):
        print_text(f"limited to {limit:,} examples of each split")
    for part, difference in meta.get("differs_from_published", {}).items():
        print_text(f"not the published set: {part} has {difference}")
