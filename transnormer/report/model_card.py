"""The model card: README.md of an exported model, in the Hub's format, from the files of its run and nothing else."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCardData

from transnormer.data.examples import ExampleStore
from transnormer.data.open_store import open_store
from transnormer.environment import without_folder
from transnormer.errors import DataError, TransNormerError
from transnormer.experiments.recording import data_of
from transnormer.files import read_floats
from transnormer.journal import worth_reading
from transnormer.mixers.registry import mixer_class
from transnormer.report.run_record import RunRecord, read_run


class Head(NamedTuple):
    """What a model does, in words and as the Hub calls it, and what it does not."""

    what: str
    pipeline: str
    limit: str


_CLASSES = "It knows the classes of its task and no others."
_HEADS = {
    "TransNormerForCausalLM": Head(
        "A causal language model",
        "text-generation",
        "It continues text. It was not trained to follow instructions, to answer truthfully or to refuse anything.",
    ),
    "TransNormerForMaskedLM": Head("A masked language model", "fill-mask", "It fills masks. It does not write text."),
    "TransNormerForSequenceClassification": Head("A classifier of sequences", "text-classification", _CLASSES),
    "TransNormerForPairClassification": Head("A classifier of pairs of sequences", "text-classification", _CLASSES),
}


@dataclass(frozen=True)
class Score:
    """Metrics of the exported weights on a split, and how they were made."""

    split: str
    protocol: str
    metrics: dict[str, float]


def model_card(name: str, source: Path, exported: dict[str, Any], license_id: str) -> str:
    """The card of what was exported under a name from a model folder, of a run or by itself.

    `exported` is what `export_model` says of it, `license_id` one of the Hub's names of licences.
    """
    run, step = _run_of(source), _step_of(source)
    record = read_run(run) if run else None
    result = record.result if record else None
    scores = _scores(run, result, step) if run else []
    label, data = _data(run) if run else ("unknown", ["not known: the model was exported from a folder of no run"])
    config = _read(source / "config.json")
    has_tokenizer = (source / "tokenizer_config.json").is_file()
    head = _HEADS[exported["architecture"]]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("transnormer.report", "."), trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    environment.filters |= {"number": lambda value: f"{value:,.6g}", "quote": shlex.quote, "literal": json.dumps}
    return environment.get_template("model_card.md").render(
        metadata=_metadata(name, license_id, head.pipeline if has_tokenizer else None, label, scores).to_yaml().strip(),
        name=name,
        head=head,
        run=record.config if record else None,
        facts=_facts(exported, config, result, step),
        data=data,
        scores=scores,
        loader=exported["loads with"].rpartition(".")[2],
        library=exported["loads with"].partition(".")[0],
        has_tokenizer=has_tokenizer,
        length=_length(record, config, head),
        has_fixed_state=config["causal"] and all(mixer_class(mixer).traits.recurrent for mixer in config["mixers"]),
        commands=_commands(run, result) if run and result else None,
        keys=_keys(record) if record else None,
    )


def _run_of(folder: Path) -> Path | None:
    """The run that a model folder, final/ or checkpoints/step-*/, lies in."""
    return next((parent for parent in folder.resolve().parents[:2] if (parent / "config.yaml").is_file()), None)


def _step_of(folder: Path) -> int | None:
    manifest = folder / "manifest.json"
    return _read(manifest).get("step") if manifest.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON: {error}", "restore it, or remove what `transnormer eval` wrote"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object")
    return content


def _scores(run: Path, result: dict[str, Any] | None, step: int | None) -> list[Score]:
    """Every score of the weights of this step: in the result of the run, and what `transnormer eval` wrote."""
    scored = [_read(path) for path in sorted(run.glob("eval-*.json"))]
    if result:
        last = {"step": result["steps"], "metrics": result["metrics"]}
        for split, scores in (("valid", last), ("valid", result["best"]), ("test", result.get("test"))):
            if scores:
                scored.append({**scores, "split": split, "protocol": result["protocol"]})
    of_this_step = {(each["split"], each["protocol"]): each for each in scored if each["step"] == step}
    found = [(key, read_floats(each["metrics"])) for key, each in sorted(of_this_step.items(), reverse=True)]
    silent = {name for _, metrics in found for name in metrics.keys() - worth_reading(metrics).keys()}
    return [
        Score(split, protocol, {name: value for name, value in metrics.items() if name not in silent})
        for (split, protocol), metrics in found
    ]


def _commands(run: Path, result: dict[str, Any]) -> list[str]:
    """How the run was started and, where it was resumed, how it came to its end."""
    environment = run / "environment.json"
    words = [*([_read(environment)["command"]] if environment.is_file() else []), result["command"]]
    return list(dict.fromkeys(shlex.join(map(without_folder, each)) for each in words))


def _data(run: Path) -> tuple[str, list[str]]:
    """The name of the data of a run, and lines about them; the store says more where it is still in its place."""
    if not (run / "data.json").is_file():
        return "unknown", ["not recorded: the run was made by an older version"]
    recorded = _read(run / "data.json")
    name, lines = Path(recorded["store"]).name, [f"digest `{recorded['digest']}`"]
    try:
        store = open_store(recorded["store"])
    except TransNormerError:
        store = None
    if store is None or store.digest != recorded["digest"]:
        return name, [f"store `{name}`, no longer in its place", *lines]
    data = data_of(store)
    meta = data.meta
    unit = "tokens" if "corpus" in meta else "examples"
    lines.insert(0, ", ".join(f"{split} {size:,}" for split, size in data.sizes.items()) + f" {unit}")
    source = store.task if isinstance(store, ExampleStore) else meta.get("corpus", "")
    title = data.label if source in data.label else f"{source} ({data.label})"
    lines.insert(0, f"**{title}**" + (f": {meta['split_rule']}" if "split_rule" in meta else ""))
    if original := meta.get("stands_in_for"):
        lines.insert(1, f"stands in for {original}, whose published results are not to be compared with these")
    if tokenizer := meta.get("tokenizer"):
        lines.append(f"tokenizer `{tokenizer['kind']}`, {store.vocab_size:,} ids")
    lines += [
        f"not the published set: {part} has {what}" for part, what in meta.get("differs_from_published", {}).items()
    ]
    lines += [f"from `{file}`, sha256 `{digest}`" for file, digest in meta.get("sources", {}).items()]
    return title, lines


def _metadata(name: str, license_id: str, pipeline: str | None, label: str, scores: list[Score]) -> ModelCardData:
    results = [
        EvalResult(
            pipeline or "classification",
            label,
            label,
            metric,
            value,
            dataset_split=score.split,
            metric_name=score.protocol,
        )
        for score in scores
        for metric, value in score.metrics.items()
        if math.isfinite(value)
    ]
    return ModelCardData(
        license=license_id,
        library_name="transformers",
        pipeline_tag=pipeline,
        tags=["transnormer", "custom_code"],
        model_name=name,
        eval_results=results or None,
    )


def _length(record: RunRecord | None, config: dict[str, Any], head: Head) -> int:
    """The longest sequence it was trained on."""
    if record and "classification" not in head.pipeline:
        return int(record.config["data"]["sequence_length"])
    return int(config["max_position_embeddings"])


def _facts(
    exported: dict[str, Any], config: dict[str, Any], result: dict[str, Any] | None, step: int | None
) -> dict[str, str]:
    layers = ", ".join(f"{config['mixers'].count(mixer)} {mixer}" for mixer in dict.fromkeys(config["mixers"]))
    facts = {
        "architecture": f"`{exported['architecture']}`, {config['hidden_size']:,} wide, layers: {layers}",
        **{key: exported[key] for key in ("parameters", "dtype", "tokenizer")},
    }
    if step is not None:
        facts["step of the weights"] = f"{step:,}"
    if result:
        if init := result.get("init"):
            began = Path(init["init"]).name + ("" if init["step"] is None else f", step {init['step']:,}")
            facts["began with"] = f"`{began}`, sha256 `{init['sha256']}`"
        hardware = result["hardware"]
        device = ", ".join(hardware["gpus"]) if result["device"] == "cuda" else hardware["cpu"]
        facts["trained for"] = f"{result['steps']:,} steps, {result['tokens']:,} tokens, {result['seconds']:,.0f} s"
        facts["trained with"] = f"seed {result['seed']}, {result['precision']}, {device}"
        facts["versions"] = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
        facts["commit"] = str(result["commit"] or "not in a git checkout")
    return facts


def _keys(record: RunRecord) -> str:
    """The resolved config as it can be published."""
    places = {
        section: {
            key: without_folder(value) if isinstance(value, str) else value
            for key, value in record.config[section].items()
        }
        for section in ("data", "model")
    }
    return yaml.safe_dump({**record.config, **places}, sort_keys=False, allow_unicode=True).strip()
