"""`transnormer bench ops` and `bench speed` as they are typed: options, errors, tables, records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from transnormer.bench import decode, gpu_ops, ops, speed, timing
from transnormer.cli.app import main
from transnormer.cli.bench import app
from transnormer.errors import ConfigError, DiskError
from transnormer.models.backbone import TransNormerPreTrainedModel


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_speed_writes_the_execution_into_its_record(tmp_path):
    out = tmp_path / "speed.json"
    done = run(
        "speed", "--setting", "tiny", "--methods", "t2,vanilla", "--lengths", "64", "--execution", "eager", "--out", out
    )
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert record["settings"]["execution"] == "eager"
    assert [row["train_execution"] for row in record["rows"]] == ["eager", "eager"]
    assert "| train | T | tokens/s | model FLOPs/s | utilisation | peak GiB |" in out.with_suffix(".md").read_text()
    assert "2/2  vanilla  T=64" in done.stderr
    assert "tokens/s" in done.stderr


def test_gradient_checkpointing_is_timed_as_it_is_trained(tmp_path, monkeypatch):
    """Layers are recomputed in the steps that are timed; a CUDA graph of that is refused, as `train` refuses it."""
    recomputed = []
    enable = TransNormerPreTrainedModel.gradient_checkpointing_enable
    monkeypatch.setattr(
        TransNormerPreTrainedModel,
        "gradient_checkpointing_enable",
        lambda model, *options: (recomputed.append(model), enable(model, *options)),
    )
    out = tmp_path / "speed.json"
    done = run(
        "speed", "--setting", "tiny", "--methods", "t2", "--lengths", "64", "--gradient-checkpointing", "--out", out
    )
    assert done.exit_code == 0, done.output
    assert len(recomputed) == 1  # of the training step; inference keeps nothing
    assert json.loads(out.read_text())["settings"]["gradient_checkpointing"]
    with pytest.raises(ConfigError, match="not timed as one"):
        speed.describe("1b", torch.device("cuda"), execution="cuda_graph", gradient_checkpointing=True)


def test_execution_and_limit_reach_the_benchmark(monkeypatch):
    asked = {}

    def measured(setting, methods, lengths, device, **options):
        asked.update(options)
        for length in lengths:
            numbers = {"execution": "compile", "steps_per_second": 2.0, "peak_bytes": None}
            yield {
                "method": "t2",
                "length": length,
                **{f"{kind}_{key}": value for kind in ("train", "inference") for key, value in numbers.items()},
            }

    monkeypatch.setattr(speed, "measure_speed", measured)
    done = run("speed", "--methods", "t2", "--lengths", "64,128", "--execution", "compile", "--limit", "7")
    assert done.exit_code == 0, done.output
    assert (asked["execution"], asked["limit"]) == ("compile", 7.0)
    assert "precision=float32, torch.compile" in done.stdout
    assert "1/2  t2  T=64  2.00 train steps/s (compile)  2.00 inference steps/s (compile)" in done.stderr


def test_a_benchmark_cut_short_keeps_what_it_measured(tmp_path, monkeypatch):
    """Beside the record, which stays as it was until there is a whole new one."""
    out = tmp_path / "speed.json"
    partial = tmp_path / "speed.partial.json"
    arguments = ["speed", "--setting", "tiny", "--methods", "t2", "--lengths", "64,128", "--out", out]
    out.write_text("an earlier record")
    whole = speed.measure_speed

    def cut_short(*arguments, **options):
        yield next(whole(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "measure_speed", cut_short)
    assert run(*arguments).exit_code != 0
    assert out.read_text() == "an earlier record"
    assert [row["length"] for row in json.loads(partial.read_text())["rows"]] == [64]
    monkeypatch.setattr(speed, "measure_speed", whole)
    assert run(*arguments).exit_code == 0
    assert [row["length"] for row in json.loads(out.read_text())["rows"]] == [64, 128]
    assert not partial.exists()


@pytest.mark.parametrize("command", ["ops", "speed", "decode"])
@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("file/below.json", "Not a directory"),
        ("file/further/below.json", "Not a directory"),
        ("folder.json", "Is a directory"),
        ("/proc/record.json", "No such file or directory"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch, capsys, command, out, why
):
    def measured(*arguments, **options):
        raise AssertionError("measured")

    for module, name in ((ops, "measure_ops"), (speed, "measure_speed"), (decode, "measure_decode")):
        monkeypatch.setattr(module, name, measured)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder.json").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as exit_:
        main(["bench", command, "--out", out])
    assert exit_.value.code == 6
    assert capsys.readouterr().err == f"error: cannot write {out}: {why}\nhint: choose another --out\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_looking_whether_a_record_can_be_written_writes_nothing(tmp_path):
    done = run("ops", "--peers", "none", "--out", tmp_path / "new" / "ops.json")
    assert "are for a GPU" in str(done.exception)
    assert not any(tmp_path.iterdir())
    (tmp_path / "ops.json").write_text("an earlier record")
    run("ops", "--peers", "none", "--out", tmp_path / "ops.json")
    assert (tmp_path / "ops.json").read_text() == "an earlier record"
    assert [path.name for path in tmp_path.iterdir()] == ["ops.json"]


def test_a_disk_that_fills_up_is_an_error_for_people(monkeypatch):
    """/dev/full takes no byte."""
    monkeypatch.setattr("transnormer.bench.record._partial", lambda path: Path("/dev/full"))
    monkeypatch.setattr(ops, "measure_ops", lambda lengths: iter([{}]))
    done = run("ops", "--out", "ops.json")
    assert isinstance(done.exception, DiskError)
    assert "cannot write /dev/full: No space left on device" in str(done.exception)


@pytest.mark.parametrize("limit", ["-5", "0", "nan", "inf", "1e12"])
def test_a_limit_that_is_none(limit):
    done = run("speed", "--setting", "tiny", "--methods", "t2", "--lengths", "64", "--limit", limit)
    assert isinstance(done.exception, ConfigError)
    assert f"--limit is {float(limit):g}" in str(done.exception)
    assert done.stdout == ""


def test_a_graph_needs_a_gpu():
    done = run("speed", "--execution", "cuda_graph", "--lengths", "64")
    assert isinstance(done.exception, ConfigError)
    assert "--execution cuda_graph records CUDA graphs, and there are none on the CPU" in str(done.exception)
    assert done.stdout == ""


def test_an_unknown_execution_names_those_there_are():
    refused = run("speed", "--execution", "fast")
    assert refused.exit_code == 2
    assert all(name in refused.output for name in ("eager", "compile", "cuda_graph"))


def test_what_is_for_a_gpu_is_said_on_the_cpu():
    for option in (("--peers", "none"), ("--compile-jobs", 2)):
        done = run("ops", *option)
        assert isinstance(done.exception, ConfigError)
        assert "are for a GPU" in str(done.exception)
    assert "--peers: unknown 'fsdp'" in str(run("ops", "--device", "cuda", "--peers", "fsdp").exception)
    assert "--cases: unknown 'norm'" in str(run("ops", "--device", "cuda", "--cases", "norm").exception)


def test_ops_on_a_gpu_prints_the_summary_and_writes_all_rows(tmp_path, monkeypatch):
    """With the measurements replaced by numbers."""

    def measured(bandwidth, cases, shapes, peers):
        assert (cases, shapes, peers) == (["norm causal"], ["LM 64x512"], ["compile"])
        shared = {"case": "norm causal", "shape": "LM 64x512"}
        yield {**shared, "by": "triton", "forward_us": 40.0, "forward_backward_us": 120.0}
        yield {**shared, "by": "triton-folded", "forward_us": 30.0}  # a forward alone
        yield {**shared, "by": "compile", "failed": "TypeError: no"}
        yield {**shared, "by": "fla-chunk", "forward_us": 134.0, "forward_backward_us": 329.0}

    monkeypatch.setattr(gpu_ops, "measure_gpu_ops", measured)
    monkeypatch.setattr(gpu_ops, "copy_bandwidth", lambda: 4.28e12)
    ahead = []
    monkeypatch.setattr(gpu_ops, "compile_ahead", lambda *what: ahead.append(what))
    monkeypatch.setattr(timing, "require_device", lambda name: None)
    out = tmp_path / "ops.json"
    arguments = ("--cases", "norm causal", "--shapes", "LM 64x512", "--peers", "compile", "--out", out)
    done = run("ops", "--device", "cuda", "--compile-jobs", 3, *arguments)
    assert done.exit_code == 0, done.output
    assert ahead == [(["norm causal"], ["LM 64x512"], ["compile"], 3)]
    assert "norm causal  LM 64x512  triton  40.0 | 120.0 us" in done.stderr
    assert "norm causal  LM 64x512  triton-folded  30.0 us" in done.stderr
    assert "norm causal  LM 64x512  compile  TypeError: no" in done.stderr
    assert "fla-chunk 329.0" in done.stdout
    record = json.loads(out.read_text())
    assert [row["by"] for row in record["rows"]] == ["triton", "triton-folded", "compile", "fla-chunk"]
    assert record["summary"][0]["forward_backward"]["x_best_peer"] == pytest.approx(120 / 329)
    assert record["settings"]["shapes"] == {"LM 64x512": [64, 512, 8, 64]}
    assert set(record["settings"]["peers"]) >= {"flex", "fla-chunk"}
