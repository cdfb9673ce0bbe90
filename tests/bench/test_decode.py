"""The decode benchmark: gated, honest about what does not fit, and its arithmetic."""

from __future__ import annotations

import json

import pytest
import torch

from transnormer.bench import decode, decode_table
from transnormer.bench.ops import GateFailed
from transnormer.cli.app import main
from transnormer.errors import ConfigError
from transnormer.generate import decoder
from transnormer.models.heads import TransNormerForCausalLM

CPU = torch.device("cpu")
TWINS = ["t2-tiny", "vanilla-tiny"]


def measure(presets=TWINS, contexts=(8, 200), batches=(1, 2)):
    return list(decode.measure_decode(presets, contexts, batches, CPU, compiled=True))


def test_one_row_per_setting_with_the_bytes_of_the_state():
    rows = measure()
    assert [(row["batch"], row["preset"], row["context"]) for row in rows] == [
        (batch, name, context) for batch in (1, 2) for name in TWINS for context in (8, 200)
    ]
    assert all(row["tokens_per_second"] == row["batch"] / row["seconds_per_step"] > 0 for row in rows)
    memories, keys = 2 * 4 * 32 * 32 * 4, 2 * 2 * 64 * 128 * 4
    for row in rows:
        expected = memories + keys if row["preset"] == "t2-tiny" else 4 * 2 * row["context"] * 128 * 4
        assert row["state_bytes_per_sequence"] == expected


def test_what_is_timed_reads_exactly_the_context(monkeypatch):
    seen, lengths = [], []
    step = decoder.next_logits

    def spy(model, token, states):
        lengths.append(int(states[0]["length"]))
        seen.append((states[0]["keys"].shape[1], bool(states[0]["keys"].ne(0).any())))
        return step(model, token, states)

    monkeypatch.setattr(decode, "_check", lambda *_: None)
    monkeypatch.setattr(decoder, "next_logits", spy)
    measure(["vanilla-tiny"], [77], [1])
    assert set(seen) == {(77, True)}
    assert lengths[0] == 76


@pytest.mark.parametrize("name", TWINS)
def test_a_wrong_step_is_not_timed(monkeypatch, name):
    right = decoder.next_logits
    monkeypatch.setattr(decoder, "next_logits", lambda model, token, states: right(model, token ^ 1, states))
    with pytest.raises(GateFailed, match=f"{name}: a decoded token is not the best"):
        measure([name])


def test_a_forgetful_step_is_not_timed(monkeypatch):
    right = decoder.next_logits

    def forgetful(model, token, states):
        logits = right(model, token, states)
        states[-1].forget()
        return logits

    monkeypatch.setattr(decoder, "next_logits", forgetful)
    with pytest.raises(GateFailed):
        measure(["t2-tiny"])


def test_a_setting_that_does_not_fit_says_so(monkeypatch):
    monkeypatch.setattr(decode, "_free_bytes_of_the_host", lambda: 1e6)
    rows = measure(contexts=[8, 10_000], batches=[1])
    assert [row.get("out_of_memory", False) for row in rows] == [False, False, False, True]
    assert rows[-1]["state_bytes_per_sequence"] == 4 * 2 * 10_000 * 128 * 4
    assert "| no memory | – |" in decode_table.markdown(rows)


def test_an_allocator_that_refuses_is_a_row_too(monkeypatch):
    monkeypatch.setattr(decode, "_check", lambda *_: None)

    def refuse(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(decode, "Decoder", refuse)
    assert [row["out_of_memory"] for row in measure(["t2-tiny"], [8], [1])] == [True]


def test_language_models_have_the_benchmarks_vocabulary():
    with torch.device("meta"):
        model = decode.build("t2-lm", max_position_embeddings=131_072)
    assert isinstance(model, TransNormerForCausalLM)
    assert model.config.vocab_size == 50_304
    assert decode.build("t2-tiny").config.vocab_size == 259


def test_bad_requests_are_errors():
    with pytest.raises(ConfigError, match="'t2-mlm' is bidirectional"):
        measure(["t2-mlm"])
    with pytest.raises(ConfigError, match="did you mean"):
        measure(["t2-tinny"])
    with pytest.raises(ConfigError, match="performer cannot decode"):
        measure(["performer-tiny"])
    with pytest.raises(ConfigError, match="compared with itself"):
        measure(["t2-tiny", "t2-tiny"])


def row(preset, batch, context, seconds=None):
    setting = {
        "preset": preset,
        "batch": batch,
        "context": context,
        "state_bytes_per_sequence": 2**20 * context // 1024,
    }
    if seconds is None:
        return {**setting, "out_of_memory": True}
    return {**setting, "seconds_per_step": seconds, "tokens_per_second": batch / seconds}


def test_ratios_growth_and_table():
    rows = [
        row("ours", 4, 1024, 0.001),
        row("ours", 4, 4096, 0.00102),
        row("theirs", 4, 1024, 0.002),
        row("theirs", 4, 4096),
    ]
    assert [found["ratio"] for found in decode_table.ratios(rows)] == [pytest.approx(2.0), None]
    ours, theirs = decode_table.growth(rows)
    assert ours == {"preset": "ours", "batch": 4, "from": 1024, "to": 4096, "time": pytest.approx(1.02)}
    assert theirs == {"preset": "theirs", "batch": 4, "from": 1024, "to": 1024, "time": 1.0}
    table = decode_table.markdown(rows)
    assert "| 4 | 1,024 | 4,000 | 2,000 | 2.00 | 1.00 MiB | 1.00 MiB |" in table
    assert "| 4 | 4,096 | 3,922 | no memory | – | 4.00 MiB | 4.00 MiB |" in table
    assert "| ours | 4 | 1,024 → 4,096 | +2.0 % |" in table


def run(*arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "decode", *map(str, arguments)])
    return exit_.value.code or 0


def test_the_command_prints_a_table_and_writes_a_record(tmp_path, capsys):
    out = tmp_path / "decode.json"
    tiny = ["--preset", "t2-tiny", "--against", "vanilla-tiny"]
    assert run(*tiny, "--contexts", "8,64", "--batches", "1", "--out", out) == 0
    record = json.loads(out.read_text())
    assert record["benchmark"] == "decode"
    assert record["settings"]["contexts"] == [8, 64]
    assert record["settings"]["step"] == "eager"
    assert [row["preset"] for row in record["rows"]] == ["t2-tiny", "t2-tiny", "vanilla-tiny", "vanilla-tiny"]
    assert len(record["ratios"]) == len(record["growth"]) == 2
    assert out.with_suffix(".md").read_text().strip() in capsys.readouterr().out
    assert run(*tiny, "--contexts", "0") == 2
    assert "--contexts: '0' is not a number above 0" in capsys.readouterr().err
    assert run(*tiny, "--batches", "1,x") == 2
    assert "--batches: 'x'" in capsys.readouterr().err
