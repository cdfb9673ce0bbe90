"""A long text in a state of constant size, and what a model writes behind it: a TransNormer beside softmax attention.

python examples/long_context.py [MODEL] [--text FILE]

MODEL is a folder that `transnormer export` wrote. Without one tokens are bytes and weights are random: sizes and times
mean something then, and what is written is noise. The text is a module of Python's standard library, or FILE.
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer

import transnormer as tn
from transnormer.errors import TransNormerError

PIECES = 4


@torch.no_grad()
def state_sizes(model: tn.TransNormerForCausalLM, ids: torch.Tensor) -> list[int]:
    """Bytes of the state after each piece of the tokens [1, T], which are read piece by piece."""
    cache, sizes = tn.DecodeCache(model.config), []
    for piece in ids.tensor_split(PIECES, dim=1):
        model(piece, past_key_values=cache, logits_to_keep=1)
        sizes.append(tn.state_bytes(cache))
    return sizes


def run(folder: Path | None, text: bytes, context: int, count: int) -> None:
    if folder:
        for name in ("config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder} is no exported model: it has no {name}")
        model = tn.TransNormerForCausalLM.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(text.decode(errors="replace"), add_special_tokens=False, return_tensors="pt").input_ids
    else:
        model = tn.TransNormerForCausalLM(tn.preset("t2-tiny", vocab_size=256)).eval()
        ids = torch.tensor([list(text)])
    if ids.shape[1] < context:
        raise ValueError(f"the text has {ids.shape[1]:,} tokens: lower --context, which is {context:,}")
    ids = ids[:, :context]
    softmax = tn.TransNormerForCausalLM(tn.preset("llama-tiny", vocab_size=model.config.vocab_size)).eval()

    print("  tokens  KiB of state  of llama-tiny")
    for piece, sizes in enumerate(zip(state_sizes(model, ids), state_sizes(softmax, ids), strict=True), 1):
        print(f"{context * piece // PIECES:8,d}  {sizes[0] // 1024:12,d}  {sizes[1] // 1024:13,d}")

    decoder = tn.Decoder(model, max_context=context + count, sampling=tn.Sampling(temperature=0.8))
    for before in (context // 100, context):
        decoder.prefill(ids[:, -before:])
        begun = time.perf_counter()
        new = decoder.generate(count)[0].tolist()
        taken = time.perf_counter() - begun
        print(f"{count} tokens behind {before:,}: {1000 * taken / count:.1f} ms each")
    for title, tokens in (("text ends", ids[0, -100:].tolist()), ("model writes", new)):
        words = tokenizer.decode(tokens) if folder else bytes(tokens).decode(errors="replace")
        print(f"\n--- the {title}:", "".join(c if c.isprintable() or c == "\n" else "�" for c in words), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="folder of an exported model")
    parser.add_argument("--text", type=Path, default=Path(argparse.__file__), help="what is read; argparse.py itself")
    parser.add_argument("--context", type=int, default=4096, help="tokens of the text, at least 100")
    parser.add_argument("--new-tokens", type=int, default=100, help="tokens to write, at least 1")
    arguments = parser.parse_args()
    if arguments.context < 100 or arguments.new_tokens < 1:
        parser.error("--context must be at least 100, and --new-tokens at least 1")
    torch.manual_seed(0)
    try:
        run(arguments.model, arguments.text.read_bytes(), arguments.context, arguments.new_tokens)
    except (OSError, ValueError, TransNormerError) as error:
        parser.error(str(error).splitlines()[0])


if __name__ == "__main__":
    main()
