"""Peers' times that were measured once on an H200, for where a peer is not installed; that run has no record here.

One H200, torch 2.11.0, triton 3.6.0, flash-linear-attention, lightning-attn 0.0.5 and others, bfloat16, medians of CUDA
graphs over rotated inputs, device copy 4.28 TB/s. Each was the best in that run of all peers that compute the whole op;
`core` has neither feature map nor norm, so no ratio is taken to it.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "quoted: an earlier run on an H200 that was not recorded"
_DEVICE = "H200"


class Quoted(NamedTuple):
    """Microseconds of one peer."""

    by: str
    forward: float
    forward_backward: float


_LM_512, _LM_2K, _LM_8K, _LM_32K = "LM 64x512", "LM 16x2048", "LM 4x8192", "LM 1x32768"
_LLM, _LRA_1K, _LRA_4K = "LLM 4x8192", "LRA 16x1024", "LRA 16x4096"

WHOLE: dict[str, dict[str, Quoted]] = {
    "norm causal": {
        _LM_512: Quoted("fla", 134, 329),
        _LM_2K: Quoted("fla", 134, 354),
        _LM_8K: Quoted("fla", 155, 483),
        _LM_32K: Quoted("fla", 312, 877),
        _LLM: Quoted("fla", 602, 2119),
        _LRA_1K: Quoted("fla", 18.3, 51.3),
        _LRA_4K: Quoted("fla", 56.9, 174),
    },
    "norm full": {
        _LM_2K: Quoted("compile", 130, 312),
        _LM_8K: Quoted("compile", 143, 305),
        _LLM: Quoted("compile", 481, 1110),
        _LRA_4K: Quoted("compile", 40.9, 101),
        _LRA_1K: Quoted("compile", 20.7, 45.7),
    },
    "diag softmax causal": {
        _LM_2K: Quoted("flex-tuned", 49.9, 214),
        _LM_8K: Quoted("flex", 72, 287),
        _LLM: Quoted("flex-tuned", 170, 649),
        _LRA_4K: Quoted("flex-tuned", 17.5, 64.3),
        _LRA_1K: Quoted("flex", 7.9, 28.0),
    },
    "diag rela causal": {
        _LM_2K: Quoted("compile", 176, 539),
        _LM_8K: Quoted("compile", 177, 540),
        _LLM: Quoted("compile", 487, 1506),
        _LRA_4K: Quoted("compile", 55.8, 168),
        _LRA_1K: Quoted("compile", 37.9, 79.7),
    },
    "full softmax causal": {
        _LM_2K: Quoted("sdpa-cudnn", 180, 722),
        _LM_8K: Quoted("sdpa-cudnn", 625, 2300),
        _LLM: Quoted("sdpa-cudnn", 1795, 7392),
        _LRA_4K: Quoted("sdpa-cudnn", 178, 650),
        _LRA_1K: Quoted("sdpa-cudnn", 23.3, 82.4),
    },
}
CORE: dict[str, dict[str, Quoted]] = {
    "norm causal": {
        _LM_512: Quoted("fla-fused core", 37, 129),
        _LM_2K: Quoted("fla-fused core", 42, 154),
        _LM_8K: Quoted("fla-chunk core", 91, 344),
        _LM_32K: Quoted("fla-chunk core", 196, 676),
        _LLM: Quoted("fla-chunk core", 360, 1595),
        _LRA_1K: Quoted("fla-chunk core", 10.6, 36.9),
        _LRA_4K: Quoted("fla-chunk core", 36.4, 129),
    },
    "norm full": {
        _LM_2K: Quoted("flash_bla core", 51, 134),
        _LM_8K: Quoted("flash_bla core", 105, 225),
        _LLM: Quoted("flash_bla core", 190, 556),
        _LRA_4K: Quoted("flash_bla core", 47.9, 96.8),
        _LRA_1K: Quoted("flash_bla core", 15.8, 33.6),
    },
}


def quoted_rows(case: str, shape: str, device_name: str) -> list[dict[str, object]]:
    """The quoted times for a case and shape as rows of the benchmark; none on another GPU than they were taken on."""
    if _DEVICE not in device_name:
        return []
    rows = []
    for table, whole in ((WHOLE, True), (CORE, False)):
        if (peer := table.get(case, {}).get(shape)) is not None:
            rows.append(
                {
                    "case": case,
                    "shape": shape,
                    "by": peer.by,
                    "source": SOURCE,
                    "whole": whole,
                    "forward_us": peer.forward,
                    "forward_backward_us": peer.forward_backward,
                }
            )
    return rows
