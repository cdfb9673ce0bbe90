"""The outcome of a run reads back as numbers, and what is no outcome is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from transnormer.errors import DataError
from transnormer.files import write_json
from transnormer.run_result import read_result


def test_it_reads_back_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert read_result(path, set()) is None
    best, test = ({"step": 1, "metrics": {"loss": loss}} for loss in (float("-inf"), 2.0))
    result = {"metrics": {"perplexity": float("inf"), "loss": 1.5}, "best": best, "test": test}
    write_json(path, result)
    assert read_result(path, set()) == result
    write_json(path, {**result, "best": None, "test": None})
    assert read_result(path, set()) == {**result, "best": None, "test": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "JSONDecodeError"),
        ("\0\xff", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        ("[]", "AttributeError"),
        ("null", "AttributeError"),
        ("{}", "it has no metrics, steps"),
        ('{"metrics": {}}', "it has no steps"),
        ('{"steps": 1, "metrics": {"loss": "low"}}', "ValueError"),
        ('{"steps": 1, "metrics": {}, "best": 1}', "TypeError"),
        ('{"steps": 1, "metrics": {}, "test": {"step": 1}}', "KeyError: 'metrics'"),
    ],
)
def test_a_damaged_one_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"result\.json is damaged: .*{message}") as caught:
        read_result(path, {"steps"})
    assert "transnormer resume" in caught.value.hint
