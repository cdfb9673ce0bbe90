"""Text of any length on a state of constant size: a TransNormer beside softmax attention.

python examples/long_context.py [MODEL]

MODEL is a folder that `transnormer export` wrote; without one the weights are random, and only sizes and times mean
something.
"""

import argparse
import time

import torch

import transnormer as tn

PIECES = 4


@torch.no_grad()
def state_sizes(model: tn.TransNormerForCausalLM, tokens: int) -> list[int]:
    """Bytes of the state after each piece of a text of random tokens, which is read piece by piece."""
    cache, sizes = tn.DecodeCache(model.config), []
    for piece in torch.randint(0, model.config.vocab_size, (1, tokens)).chunk(PIECES, dim=1):
        model(piece, past_key_values=cache, logits_to_keep=1)
        sizes.append(tn.state_bytes(cache))
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder of an exported model")
    parser.add_argument("--context", type=int, default=4096, help="tokens before the first new one")
    parser.add_argument("--new-tokens", type=int, default=100)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    folder, context, count = arguments.model, arguments.context, arguments.new_tokens
    random = tn.TransNormerForCausalLM(tn.preset("t2-tiny"))
    model = tn.TransNormerForCausalLM.from_pretrained(folder) if folder else random
    softmax = tn.TransNormerForCausalLM(tn.preset("llama-tiny"))

    print("  tokens  KiB of state  of llama-tiny")
    sizes = zip(state_sizes(model.eval(), context), state_sizes(softmax.eval(), context), strict=True)
    for piece, (ours, softmaxs) in enumerate(sizes, 1):
        print(f"{context * piece // PIECES:8,d}  {ours // 1024:12,d}  {softmaxs // 1024:13,d}")

    decoder = tn.Decoder(model, sampling=tn.Sampling(temperature=0.8))
    for before in (context // 100, context):
        decoder.prefill(torch.randint(0, model.config.vocab_size, (1, before)))
        begun = time.perf_counter()
        decoder.generate(count)
        taken = time.perf_counter() - begun
        print(f"{count} tokens behind {before:,}: {1000 * taken / count:.1f} ms each")


if __name__ == "__main__":
    main()
