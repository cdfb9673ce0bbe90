"""Exponents, length lists and the speed table: arithmetic that numbers are read by."""

from __future__ import annotations

import pytest

from transnormer.bench.speed_table import exponent, exponents, markdown
from transnormer.cli.lists import parse_lengths
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
        {"method": "vanilla", "length": 2048, "train_failed": "out of memory", "inference_failed": "out of memory"},
    ]
    slopes = exponents(rows)
    assert slopes["t2"]["train"] == pytest.approx(1.0)
    assert slopes["vanilla"]["train"] is None
    train, inference = markdown(rows, slopes).split("\n\n")
    assert "| t2 | 8.00 | **4.00** | 1.00 |" in train
    assert "| vanilla | **9.00** | – | – |" in train
    assert "| t2 | **20.00** | **10.00** | 1.00 |" in inference


def test_language_models_have_a_table_of_tokens():
    speed = {"train_steps_per_second": 20.0, "inference_steps_per_second": 40.0}
    tokens = {"train_tokens_per_second": 1_310_720.0, "train_flops_per_step": 2e13, "train_utilisation": 0.404}
    rows = [
        {"method": "t2", "length": 512, **speed, **tokens, "train_peak_bytes": 3 * 2**30},
        {"method": "performer", "length": 512, **speed, "train_tokens_per_second": 1e5},
        {"method": "vanilla", "length": 512, "train_failed": "out of memory", "inference_failed": "out of memory"},
    ]
    _, _, table = markdown(rows, exponents(rows)).split("\n\n")
    assert "| train | T | tokens/s | model FLOPs/s | utilisation | peak GiB |" in table
    assert "| t2 | 512 | 1,310,720 | 400 T | 40.4% | 3.00 |" in table
    assert "| performer | 512 | 100,000 | – | – | – |" in table
    assert "| vanilla | 512 | – | – | – | – |" in table


def test_the_table_says_what_ran_in_another_execution_and_why():
    speed = {"train_steps_per_second": 8.0, "inference_steps_per_second": 20.0}
    graph = {"train_execution": "cuda_graph", "inference_execution": "cuda_graph"}
    fallen = {
        "train_execution": "eager",
        "train_instead_of": {"cuda_graph": "waits for the GPU: X"},
        "inference_execution": "cuda_graph of eager kernels",
        "inference_instead_of": {"cuda_graph": "does not compile: Y"},
    }
    rows = [
        {"method": "t2", "length": 1024, **speed, **graph},
        {"method": "reformer", "length": 1024, **speed, **graph, **fallen},
        {"method": "reformer", "length": 2048, **speed, **graph, **fallen},
        {"method": "t2", "length": 2048, "train_failed": "out of memory", "inference_failed": "out of memory"}
        | {f"{kind}_instead_of": {"eager": "out of memory"} for kind in ("train", "inference")},
    ]
    _, _, remarks = markdown(rows, exponents(rows)).split("\n\n")
    assert remarks.splitlines() == [
        "- reformer, train: eager. Not as cuda_graph: waits for the GPU: X (T = 1,024, 2,048)",
        "- reformer, inference: cuda_graph of eager kernels. Not as cuda_graph: does not compile: Y (T = 1,024, 2,048)",
        "- t2, train: failed (out of memory). Not as eager: out of memory (T = 2,048)",
        "- t2, inference: failed (out of memory). Not as eager: out of memory (T = 2,048)",
    ]
