"""A task for lm-eval made of one text: its rolling log-likelihood, as lm-eval's own wikitext has it."""

from __future__ import annotations

import json
from pathlib import Path

NAME = "story"
_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {page}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""


def write_task(folder: Path, text: str) -> None:
    """Write what `--include_path folder` finds under NAME."""
    (folder / "page.json").write_text(json.dumps({"page": text}))
    (folder / f"{NAME}.yaml").write_text(_TASK.format(name=NAME, page=folder / "page.json"))
