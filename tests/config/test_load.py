"""Layering of configs, their errors, and the round trip through YAML."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest
import yaml
from any_settings import key_text, value_text
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.config.explain import value_of
from transnormer.config.load import config_hash, dump_config, load_config, resolve
from transnormer.config.recipe import SHIPPED, list_recipes, read_recipe
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError

COUNT = "an integer > 0 and <= 1,000,000,000,000"


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return write(tmp_path, "")


def test_an_empty_recipe_is_the_defaults(empty: Path) -> None:
    assert load_config(empty) == RunConfig()


def test_layers_defaults_then_recipe_then_overrides_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "train:\n  steps: 10\n  batch_size: 4\n")
    resolved = resolve(path, ["train.steps=20", "train.steps=30", "model.mixers=[diag,norm]"])
    assert resolved.config.train.steps == 30
    assert resolved.config.train.batch_size == 4
    assert resolved.config.train.eval_every == RunConfig().train.eval_every
    assert resolved.config.model.mixers == ["diag", "norm"]
    assert resolved.origins == {
        "train.steps": "override train.steps=30",
        "train.batch_size": f"{path}, line 3",
        "model.mixers": "override model.mixers=[diag,norm]",
    }


def test_mappings_merge_key_by_key(tmp_path: Path) -> None:
    path = write(tmp_path, "model:\n  mixer_options: {diag: {block_size: 32, kind: rela}}\n")
    config = load_config(path, ["model.mixer_options.diag.block_size=128", "model.mixer_options.norm={xnorm: layer}"])
    assert config.model.mixer_options == {"diag": {"block_size": 128, "kind": "rela"}, "norm": {"xnorm": "layer"}}


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("optim.lr=5e-4", 5e-4),
        ("optim.lr=1", 1.0),
        ("optim.betas=[0.9, 0.95]", (0.9, 0.95)),
        ("data.tokenizer=2024-01-01", "2024-01-01"),
        ("data.tokenizer=no", "no"),
        ("data.tokenizer='7'", "7"),
        ("data.tokenizer=a=b", "a=b"),
        ("data.tokenizer=7", "7"),
        ("data.tokenizer=*.txt", "*.txt"),
        ("data.tokenizer=my [new] files/#1: {a}.txt", "my [new] files/#1: {a}.txt"),
        ("data.store=null", None),
        ("train.tensorboard=true", True),
        ("model.position=none", "none"),
    ],
)
def test_values_are_read_as_people_mean_them(empty: Path, override: str, read: object) -> None:
    assert value_of(load_config(empty, [override]), override.partition("=")[0]) == read


@pytest.mark.parametrize("key", ["data.store", "data.source"])
def test_a_path_is_meant_from_where_it_is_written(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert value_of(load_config(empty, [f"{key}=a/b*"]), key) == str(tmp_path / "a" / "b*")
    assert value_of(load_config(empty, [f"{key}=/a/b"]), key) == "/a/b"


def test_a_tokenizers_folder_is_meant_from_where_it_is_written(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("saved", "byte"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").touch()
    (tmp_path / "tokenizer.json").touch()
    monkeypatch.chdir(tmp_path)
    meant = {
        "saved": str(tmp_path / "saved"),
        ".": str(tmp_path),
        "gpt2:a/b": f"gpt2:{tmp_path}/a/b",
        "roberta:/a/b": "roberta:/a/b",
        **{name: name for name in ("byte", "bpe", "gpt2", "gpt2:", "gtp2:a/b", "x" * 5000)},
    }
    for written, read in meant.items():
        assert load_config(empty, [f"data.tokenizer={written}"]).data.tokenizer == read
    assert load_config(empty, ["data.tokenizer=''"]).data.tokenizer == ""


def test_a_pattern_is_meant_from_any_folder(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "old [1] *"
    here.mkdir()
    for name in ("a.txt", "b [2].txt"):
        (here / name).touch()
    monkeypatch.chdir(here)
    sources = [load_config(empty, [f"data.source={text}"]).data.source for text in ("*.txt", "b [2].txt", "a.txt")]
    monkeypatch.chdir(tmp_path)
    assert sorted(glob.glob(sources[0])) == [str(here / "a.txt"), str(here / "b [2].txt")]  # noqa: PTH207 - as it is read
    assert sources[1:] == [str(here / "b [2].txt"), str(here / "a.txt")]
    assert load_config(empty, [f"data.source={sources[0]}"]).data.source == sources[0]
    assert load_config(empty, ["data.source=" + "*" * 5000]).data.source


@pytest.mark.parametrize(
    ("recipe", "overrides", "idle"),
    [
        ("", ["data.store=s", "data.corpus=python"], "data.corpus has no effect"),
        ("", ["data.limit_bytes=9", "data.store=s", "data.source=x"], "data.source, data.limit_bytes have no effect"),
        ("", ["data.store=s", "data.tokenizer=bpe", "data.vocab_size=9"], "data.tokenizer, data.vocab_size have"),
        ("task: lra/text", ["data.store=s", "lra.limit_examples=9"], "lra.limit_examples has"),
        ("data: {store: s}", ["data.corpus=enwik8"], "data.corpus has"),
        ("data: {store: s, corpus: text, tokenizer: bpe}", [], "data.corpus, data.tokenizer have"),
    ],
)
def test_keys_that_a_store_leaves_without_effect_are_refused(
    tmp_path: Path, recipe: str, overrides: list[str], idle: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, recipe), overrides)
    assert idle in caught.value.message
    assert "beside data.store" in caught.value.message
    assert "data.store=null" in caught.value.hint


def test_a_store_takes_the_place_of_a_recipes_corpus(tmp_path: Path) -> None:
    config = load_config("lm/text", ["data.store=s", "data.sequence_length=64", "data.eval_windows=9"])
    assert (config.data.corpus, config.data.tokenizer) == (RunConfig().data.corpus, None)
    assert (config.data.sequence_length, config.data.eval_windows) == (64, 9)
    assert load_config(write(tmp_path, dump_config(config))) == config
    assert load_config("lm/text", ["data.store=s", "data.store=null"]) == load_config("lm/text")
    assert load_config(write(tmp_path, "data: {store: s}"), ["data.store=null", "data.corpus=enwik8"]).data.corpus


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("train.stepz=1", "train.stepz: no such key", "train.steps"),
        ("steps=1", "steps: no such key", "train.steps"),
        ("modle.preset=t1-lm", "modle.preset: no such key", "model.preset"),
        ("train.learning_rate=1", "train.learning_rate: no such key", "optim.lr"),
        ("train.steps=many", f"train.steps: expected {COUNT}; got 'many' (a string)", None),
        ("train.steps=true", f"train.steps: expected {COUNT}; got true", None),
        ("train.steps=1e3", f"train.steps: expected {COUNT}; got 1000.0", "write 1000"),
        ("train.steps=-1", f"train.steps: expected {COUNT}; got -1", None),
        ("train.steps=null", f"train.steps: expected {COUNT}; got null", None),
        ("train.steps.deep=1", f'train.steps: expected {COUNT}; got {{"deep": 1}}', None),
        ("train.micro_batch_size=None", f"expected {COUNT}, or null; got 'None'", "write null"),
        ("optim.lr=.nan", "optim.lr: expected a number > 0 and <= 1,000.0; got NaN", None),
        ("optim.betas=[0.9]", "optim.betas: expected a list of 2 numbers >= 0 and < 1; got [0.9]", None),
        ("optim.betas=[0.9, 1.5]", "got 1.5 at optim.betas[1]", None),
        (
            "optim.schedule=cosin",
            "one of: constant, inverse_sqrt, polynomial, cosine, one_cycle; got 'cosin'",
            "cosine",
        ),
        ("train.tensorboard=yes", "train.tensorboard: expected true or false; got 'yes'", None),
        ("model.mixers=diag", "model.mixers: expected a list of strings, or null; got 'diag'", None),
        ("model.mixer_options={diag: [1]}", "got [1] at model.mixer_options.diag", None),
        ("train=5", "train: is a section, not a value; got 5", "train.steps"),
        ("optim.warmup_steps=5000", "optim.warmup_steps (5000) must be smaller than train.steps", "set both"),
        ("train.steps", "'train.steps' is not an override", "key=value"),
        ("=5", "override '=5' has an empty key", "key=value"),
        ("seed=[", "override seed=[, line 1", None),
    ],
)
def test_a_wrong_override_says_what_where_and_what_instead(
    empty: Path, override: str, message: str, hint: str | None
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(empty, [override])
    assert message in caught.value.message
    assert (hint in caught.value.hint) if hint else caught.value.hint is None
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  steps: 1\n  stepz: 2\n", "train.stepz: no such key, in {path}, line 3"),
        ("seed: 1\ntrain: {steps: x}\n", f"train.steps: expected {COUNT}; got 'x' (a string), in {{path}}, line 2"),
        ("seed: 1\ntrain: [\n", "{path}, line 3"),
        ("train:\n\tsteps: 1\n", "{path}, line 2"),
        ("seed: 1\nseed: 2\n", "{path}, line 2: key 'seed' is given twice"),
        ("- seed\n", "{path}: a recipe is a mapping of keys, this is a list"),
        ("seed: !!python/object/apply:os.getpid []\n", "{path}, line 1: YAML tag !!python/object/apply:os.getpid"),
        ("seed: !!int '3'\n", "{path}, line 1: YAML tag !!int is not allowed"),
        ("a: &x [*x]\n", "{path}, line 1: YAML aliases"),
        ("? [1, 2]\n: 3\n", "{path}, line 1: a key must be a plain word"),
        ("train.steps: 5\n", "train.steps: keys in a file are nested, not dotted, in {path}, line 1"),
        ("[" * 5000, "{path}: not a recipe: nested too deeply"),
    ],
)
def test_a_wrong_file_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message.format(path=path) in caught.value.message


def test_a_section_with_all_keys_commented_out_is_empty(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "train:\n  # steps: 5\nseed: 3\n")) == RunConfig(seed=3)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("dmo", "no recipe 'dmo'", "did you mean 'demo'?"),
        ("lm/wikitext", "no recipe 'lm/wikitext'", "did you mean 'lm/wikitext103'?"),
        ("recipes/lm/wikitext103.yaml", "does not exist", "the shipped recipe is called 'lm/wikitext103'"),
        ("x" * 5000, "is no file name", ""),
        ("a\0b", "no recipe", ""),
        (".", "is a folder", "demo"),
    ],
)
def test_an_unknown_recipe_suggests_the_nearest(name: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_binary_file_is_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_bytes(b"\x93NUMPY\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file"):
        load_config(path)


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_round_trip_and_say_why(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert load_config(write(tmp_path, dump_config(config))) == config
    # Every value of a recipe carries its reason, except the cadence of logging and saving, which needs none.
    bare = {"steps", "batch_size", "save_every", "eval_every", "log_every"}
    for line in (SHIPPED / f"{name}.yaml").read_text().splitlines():
        key, _, rest = line.partition(":")
        if line.startswith("  ") and key.strip() not in bare:
            assert "#" in rest, f"{name}: {line!r} does not say why"


def test_the_papers_settings() -> None:
    lm, mlm = load_config("lm/wikitext103"), load_config("mlm/wikitext103")
    for config in (lm, mlm):
        assert config.data.sequence_length == 512
        assert (config.optim.lr, config.optim.betas, config.optim.weight_decay) == (5e-4, (0.9, 0.98), 0.01)
        assert config.optim.clip_norm is None
        assert config.optim.clip_value is None
        assert config.optim.decay_all
    assert (lm.train.steps, lm.train.batch_size, lm.optim.eps) == (100_000, 128, 1e-8)
    assert (lm.optim.schedule, lm.optim.warmup_steps, lm.model.preset) == ("inverse_sqrt", 8000, "t2-lm")
    assert (mlm.train.steps, mlm.train.batch_size, mlm.optim.eps) == (50_000, 512, 1e-6)
    assert (mlm.optim.schedule, mlm.optim.warmup_steps, mlm.model.preset) == ("polynomial", 3000, "t2-mlm")
    assert (mlm.optim.power, mlm.optim.final_lr_ratio, mlm.task) == (1.0, 0.0, "masked_lm")


@pytest.mark.parametrize(
    ("task", "batch_size", "lr", "warmup_steps", "eval_every"),
    [
        ("text", 16, 1e-4, 80, 500),
        ("listops", 32, 1e-4, 1000, 500),
        ("retrieval", 16, 2e-4, 800, 1000),
        ("pathfinder", 128, 2e-4, 312, 500),
        ("image", 256, 1e-4, 175, 50),
    ],
)
def test_skyformers_settings(task: str, batch_size: int, lr: float, warmup_steps: int, eval_every: int) -> None:
    config = load_config(f"lra/{task}")
    optim, train = config.optim, config.train
    assert (config.task, config.lra.protocol, config.model.preset) == (f"lra/{task}", "skyformer", f"t2-lra-{task}")
    assert (train.steps, train.batch_size, train.eval_every) == (50_000, batch_size, eval_every)
    assert (optim.lr, optim.warmup_steps, optim.schedule, optim.cycle_momentum) == (lr, warmup_steps, "one_cycle", True)
    assert (optim.betas, optim.eps, optim.weight_decay) == ((0.9, 0.999), 1e-6, 0.0)
    assert (optim.clip_value, optim.clip_norm) == (1.0, None)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.tuples(key_text, st.sampled_from(["=", "=", "=", ""]), value_text).map("".join), max_size=4))
def test_any_overrides_give_a_config_that_round_trips_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        config = load_config(write(folder, ""), overrides)
    except ConfigError:
        return
    again = load_config(write(folder, dump_config(config)))
    assert again == config
    assert config_hash(again) == config_hash(config)
    # Other YAML readers see the same values.
    assert yaml.safe_load(dump_config(config)) == config.model_dump(mode="json")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=60), value_text))
def test_any_file_gives_a_config_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        config = load_config(path)
    except ConfigError:
        return
    assert isinstance(config, RunConfig)


# Text that some version of YAML reads as a number, a date, a boolean, null, or as syntax.
LOOKALIKES = ["1e5", "1.e3", "08", "0x1F", "1_000", "1:30", ".5", "yes", "Off", "null", "~", "2024-01-01", "<<", "="]
LOOKALIKES += ["*a", "# no", "a: b", "a\n b\n", "\r", "\x85", "a\u2028b", "\ufeff", " ", "'", '"']


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.sampled_from(LOOKALIKES), st.text()))
def test_text_survives_the_dump(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    config = RunConfig.model_validate({"data": {"tokenizer": text}, "model": {"mixer_options": {"diag": {text: text}}}})
    dumped = dump_config(config)
    assert load_config(write(tmp_path_factory.getbasetemp(), dumped)) == config
    assert yaml.safe_load(dumped)["data"]["tokenizer"] == text


def test_the_hash_tells_configs_apart() -> None:
    assert config_hash(RunConfig()) == config_hash(RunConfig(seed=0))
    assert config_hash(RunConfig()) != config_hash(RunConfig(seed=1))


def test_reading_a_recipe_keeps_its_lines() -> None:
    assert read_recipe("lm/wikitext103").lines[("model", "preset")] > 1


@pytest.mark.parametrize(
    "override",
    [
        *("model.num_hidden_layers=9223372036854775808", "model.hidden_size=100000000000000000000", "optim.lr=1e300"),
        *("train.batch_size=100000000000000000000", "data.sequence_length=100000000000000000000", "optim.eps=1e-300"),
        *("train.steps=100000000000000000000", "train.keep_last=100000000000000000000", "optim.clip_norm=1e300"),
        *(
            "train.threads=100000",
            "optim.weight_decay=1e300",
            "optim.power=1e300",
            "model.max_position_embeddings=100000000000000000000",
        ),
    ],
)
def test_numbers_beyond_any_run_are_refused_by_name(empty: Path, override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(str(empty), [override])
    assert refused.value.message.startswith(override.partition("=")[0])
