"""`transnormer data`: prepare, verify and describe token stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import print_table, print_text
from transnormer.errors import ConfigError

app = typer.Typer(help="Prepare, verify and describe token stores.", no_args_is_help=True)

Store = Annotated[Path, typer.Argument(metavar="STORE", help="A folder that `transnormer data prepare` wrote.")]


@app.command()
def prepare(
    out: Annotated[Path, typer.Option(help="The store to write; must be new or empty.")],
    corpus: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="python, wikitext103, wikitext2, enwik8; leave it out with --text."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Your own files by pattern, in quotes; may be given again.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where the corpus lies: a file or folder.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="byte, bpe, word, gpt2:FOLDER, roberta:FOLDER, or a folder with tokenizer.json.",
            show_default="the corpus's own",
        ),
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Size of a bpe or word vocabulary.")] = None,
    limit_bytes: Annotated[int | None, typer.Option(min=1, help="Train on the first so many bytes only.")] = None,
) -> None:
    """Turn text into a token store.

    Example: transnormer data prepare --text "my/*.txt" --tokenizer bpe --vocab-size 8000 --out store

    Example: transnormer data prepare wikitext103 --source wikitext-103/ --out store
    """
    if text and corpus not in (None, "text"):
        raise ConfigError(f"--text and the corpus '{corpus}' are both given", hint="leave one of them out")
    if text and source:
        raise ConfigError("--text and --source are both given", hint="your own files need only --text")
    if not text and corpus is None:
        raise ConfigError("nothing to prepare", hint="name a corpus, or your own files: --text 'my/*.txt'")
    from transnormer.data.prepare import prepare as write_store

    write_store(
        corpus or "text",
        out,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        limit_bytes=limit_bytes,
        source=text or source,
    )
    _describe(out)
    print_text(f"use it: transnormer train lm/text --out run data.store={out}")


@app.command()
def verify(store: Store) -> None:
    """Read every byte of a store and compare it with the recorded hashes.

    Example: transnormer data verify store
    """
    from transnormer.data.store import TokenStore

    TokenStore.open(store).verify()
    print_text(f"{store} is whole: every file has its recorded size and sha256")


@app.command()
def info(store: Store) -> None:
    """Show the splits, the tokenizer and the origin of a store.

    Example: transnormer data info store
    """
    _describe(store)


def _describe(path: Path) -> None:
    from transnormer.data.store import TokenStore

    store = TokenStore.open(path)
    rows = [
        (name, f"{split.tokens:,}", f"{split.bytes:,}", f"{split.words:,}", f"{split.bytes / split.tokens:.3f}")
        for name, split in store.splits.items()
    ]
    print_table(["split", "tokens", "bytes", "words", "bytes per token"], rows)
    kind = store.meta.get("tokenizer", {}).get("kind", "none")
    print_text(
        f"{path}: corpus {store.meta.get('corpus', 'unknown')}, tokenizer {kind}, vocabulary {store.vocab_size:,}"
    )
    if rule := store.meta.get("split_rule"):
        print_text(f"splits: {rule}")
