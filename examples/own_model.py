"""A model of one's own with TransNormer's two attentions: a byte-level language model that learns a file by heart.

python examples/own_model.py [FILE]
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transnormer as tn

WIDTH, HEADS, WINDOW = 64, 4, 128


class Block(nn.Module):
    """Attention, then a feed-forward layer, each behind a norm and beside a residual: any attention fits in."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:  # [B, T, WIDTH] in and out
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


def build_model() -> nn.Module:
    """Near tokens first, in blocks of 32; then all that came before, in time linear in their number."""
    shape = {"hidden_size": WIDTH, "num_heads": HEADS, "causal": True, "position": "lrpe"}
    near, far = tn.DiagAttention(**shape, block_size=32), tn.NormAttention(**shape)
    return nn.Sequential(nn.Embedding(256, WIDTH), Block(near), Block(far), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__), help="what to learn; this program itself")
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    try:
        text = torch.frombuffer(bytearray(arguments.file.read_bytes()), dtype=torch.uint8).long()
    except OSError as error:
        parser.error(f"cannot read {arguments.file}: {error.strerror}")
    if len(text) <= WINDOW:
        parser.error(f"{arguments.file} has {len(text)} bytes, more than {WINDOW} are needed")
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(1, arguments.steps + 1):
        starts = torch.randint(0, len(text) - WINDOW, (8, 1))
        windows = text[starts + torch.arange(WINDOW + 1)]  # [8, WINDOW + 1]
        loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step in (1, arguments.steps):
            print(f"step {step}: {loss.item() / math.log(2):.2f} bits a byte")


if __name__ == "__main__":
    main()
