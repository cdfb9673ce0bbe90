"""Records as a runner writes them, with what a test changes of them."""

from __future__ import annotations

from typing import Any

from transnormer.experiments.record import Record

PUBLISHED = {"label": "published", "digest": "0", "sizes": {"test": 10}, "meta": {}}
REGENERATED = {**PUBLISHED, "label": "regenerated", "meta": {"generated": {"seed": 0}}}
STAND_IN = {**PUBLISHED, "label": "stand-in", "meta": {"differs_from_published": {"train": "34,000 of 147,086"}}}


def record_tree(task: str, method: str, seed: int = 42, accuracy: float = 0.5, **changes: Any) -> dict[str, Any]:
    """A Long-Range Arena job as JSON."""
    return {
        "version": 2,
        "name": f"{task}-{method}-{seed}",
        "task": f"lra/{task}",
        "preset": f"{method}-lra-{task}",
        "seed": seed,
        "recipe": f"lra/{task}",
        "changes": {},
        "config": {},
        "config_hash": None,
        "command": ["transnormer", "train", f"lra/{task}"],
        "date": "2026-01-01T00:00:00+00:00",
        "commit": None,
        "primary_metric": "accuracy",
        "higher_is_better": True,
        "valid": {"step": 3, "metrics": {"accuracy": accuracy}},
        "test": {"step": 3, "metrics": {"accuracy": accuracy}},
        "protocol": "skyformer: any",
        "data": PUBLISHED,
        "parent": None,
        "gradient_norm": None,
        "choice": None,
        "segments": None,
        "examples": None,
        "parameters": 1000,
        "steps": 509_034,
        "seconds": 1234.5,
        "tokens_per_second": 5.0,
        "wall_steps_per_second": 300.0,
        "jobs_at_once": 4,
        "resumed_after": None,
        "peak_memory_bytes": 3 * 2**29,
        "execution": "cuda_graph",
        "device": "cuda",
        "precision": "bf16",
        "versions": {"torch": "2.11"},
        "hardware": {"cpu": "a processor", "cores": 8, "gpus": ["A GPU"]},
        **changes,
    }


def make_record(task: str, method: str, seed: int = 42, accuracy: float = 0.5, **changes: Any) -> Record:
    """The same, read."""
    return Record.model_validate(record_tree(task, method, seed, accuracy, **changes))
