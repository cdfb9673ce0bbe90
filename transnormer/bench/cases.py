"""What `transnormer bench ops --device cuda` can be asked for, by name: attentions, and who is compared with ours."""

from __future__ import annotations

NORM_CASES = {"norm causal": True, "norm full": False}  # case: causal
DIAG_CASES = {  # case: kind, causal
    "diag softmax causal": ("softmax", True),
    "diag softmax full": ("softmax", False),
    "diag rela causal": ("rela", True),
    "diag rela full": ("rela", False),
}
# What all of them stand in for; it has no kernel of ours.
FULL_SOFTMAX = "full softmax causal"
# The rows of a batch as one packed row: what packing costs is the difference to the case of the same name before it.
PACKED = " packed"
PACKED_CASES = tuple(case + PACKED for case in ("norm causal", "norm full", "diag softmax causal"))
CASES = (*NORM_CASES, *DIAG_CASES, *PACKED_CASES, FULL_SOFTMAX)

# Each has its builder in `peers.py`.
PEERS = ("torch", "compile", "sdpa", "sdpa-cudnn", "flex", "flex-tuned", "fla-chunk", "fla-fused")


def named_peers(wanted: str | None) -> list[str] | None:
    """The names of a comma-separated list; None is left to what can run here, 'none' is none of them."""
    return None if wanted is None else [] if wanted == "none" else [name.strip() for name in wanted.split(",")]
