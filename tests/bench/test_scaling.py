"""Exponents, length lists and the speed table: arithmetic that numbers are read by."""

from __future__ import annotations

import pytest

from transnormer.bench.record import parse_lengths
from transnormer.bench.scaling import exponent
from transnormer.bench.speed_table import exponents, markdown
from transnormer.errors import ConfigError


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power):
    lengths = [1024, 2048, 3072, 5120]
    assert exponent(lengths, [3e-5 * length**power for length in lengths]) == pytest.approx(power)


def test_lengths_are_read_as_people_write_them():
    assert parse_lengths("1k, 3K,5000") == [1024, 3072, 5000]
    for wrong in ("", "1k,,2k", "k", "-1", "1.5k", "0"):
        with pytest.raises(ConfigError, match="--lengths"):
            parse_lengths(wrong)


def test_the_table_marks_the_best_and_dashes_what_did_not_fit():
    rows = [
        {"method": "t2", "length": 1024, "train_steps_per_second": 8.0, "inference_steps_per_second": 20.0},
        {"method": "t2", "length": 2048, "train_steps_per_second": 4.0, "inference_steps_per_second": 10.0},
        {"method": "vanilla", "length": 1024, "train_steps_per_second": 9.0, "inference_steps_per_second": 16.0},
        {"method": "vanilla", "length": 2048, "out_of_memory": True},
    ]
    slopes = exponents(rows)
    assert slopes["t2"]["train"] == pytest.approx(1.0)
    assert slopes["vanilla"]["train"] is None
    train, inference = markdown(rows, slopes).split("\n\n")
    assert "| t2 | 8.00 | **4.00** | 1.00 |" in train
    assert "| vanilla | **9.00** | – | – |" in train
    assert "| t2 | **20.00** | **10.00** | 1.00 |" in inference
