"""Presets give the paper's models: the parameter counts of its tables, its layer split, its two positional forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError


def parameters(model_class: type, name: str, **overrides: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model_class(tn.preset(name, **overrides)).parameters())


@pytest.mark.parametrize(
    ("name", "millions"), [("t1-lm", 155.99), ("t2-lm", 155.99), ("vanilla-lm", 156.00), ("linear_elu-lm", 156.00)]
)
def test_language_models_have_the_papers_parameter_counts(name, millions):
    assert round(parameters(tn.TransNormerForCausalLM, name) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("name", "millions"), [("t1-mlm", 124.67), ("t2-mlm", 124.67), ("vanilla-mlm", 124.70), ("linear_elu-mlm", 124.70)]
)
def test_masked_language_models_have_the_papers_parameter_counts(name, millions):
    assert round(parameters(tn.TransNormerForMaskedLM, name) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("task", "count"),
    [("text", 370_562), ("listops", 209_802), ("retrieval", 395_138), ("pathfinder", 173_954), ("image", 158_602)],
)
def test_lra_models_have_skyformers_parameter_counts(task, count):
    pair = task == "retrieval"
    head = tn.TransNormerForPairClassification if pair else tn.TransNormerForSequenceClassification
    assert parameters(head, f"vanilla-lra-{task}") == count
    # TransNormer's GLU of 85 against the FFN of 128, and its norms without parameters: within 0.5 %.
    assert parameters(head, f"t2-lra-{task}") == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize(("size", "millions"), [("350m", 355), ("1b", 1014)])
def test_sizes_for_real_use_have_the_parameters_of_their_names(size, millions):
    """T1, T2 and llama alike; other methods are told which models there are."""
    for method in ("t1", "t2", "llama"):
        config = tn.preset(f"{method}-{size}")
        assert config.hidden_size // config.num_attention_heads == 64
        assert parameters(tn.TransNormerForCausalLM, f"{method}-{size}") / 1e6 == pytest.approx(millions, abs=1)
    assert f"vanilla-{size}" not in tn.list_presets()
    with pytest.raises(ConfigError, match=f"'vanilla-{size}'.*not made for vanilla") as refused:
        tn.preset(f"vanilla-{size}")
    assert f"llama-{size}" in refused.value.hint


def test_llama_is_vanilla_attention_in_todays_shell_at_the_same_size():
    """Within 1 % of vanilla's parameters in every size, rotated, without absolute positions where they cost nothing."""
    heads = {"lm": tn.TransNormerForCausalLM, "tiny": tn.TransNormerForCausalLM, "mlm": tn.TransNormerForMaskedLM}
    for size in (*heads, "lra-text", "lra-listops", "lra-retrieval", "lra-pathfinder", "lra-image"):
        config = tn.preset(f"llama-{size}")
        assert set(config.mixers) == {"softmax"}
        assert (config.norm, config.norm_first, config.final_norm) == ("rms", True, "rms")
        assert (config.feed_forward, config.hidden_act, config.position) == ("glu", "silu", "rope")
        assert config.position_embedding == ("learned" if size.startswith("lra") else "none")
        head = heads.get(size, tn.TransNormerForSequenceClassification)
        assert parameters(head, f"llama-{size}") == pytest.approx(parameters(head, f"vanilla-{size}"), rel=0.01)
    assert parameters(tn.TransNormerForCausalLM, "llama-lm") == 155_987_964


def test_llama_knows_the_order_of_tokens_by_rotation_alone():
    """Without absolute positions, what a bidirectional model without rotation says of a token ignores the order."""
    torch.manual_seed(0)
    ids = torch.randint(0, 259, (1, 24))
    swapped = torch.cat((ids[:, :-1][:, torch.randperm(23)], ids[:, -1:]), dim=1)
    for position, same in (("none", True), ("rope", False)):
        model = tn.TransNormerModel(tn.preset("llama-tiny", causal=False, position=position)).eval()
        with torch.no_grad():
            last, other = (model(tokens).last_hidden_state[0, -1] for tokens in (ids, swapped))
        assert torch.allclose(last, other, atol=1e-4) == same


@pytest.mark.parametrize(("layers", "diag"), [(1, 0), (2, 1), (5, 2), (6, 3), (12, 6)])
def test_the_first_half_is_diag_rounded_down(layers, diag):
    assert tn.preset("t2-lm", num_hidden_layers=layers).mixers == ["diag"] * diag + ["norm"] * (layers - diag)


def test_t1_is_rela_and_elu_and_t2_is_softmax_and_one_plus_elu():
    t1, t2 = tn.preset("t1-lm"), tn.preset("t2-lm")
    assert (t1.options_of("diag")["kind"], t1.options_of("norm")["feature_map"]) == ("rela", "elu")
    assert (t2.options_of("diag")["kind"], t2.options_of("norm")["feature_map"]) == ("softmax", "1+elu")
    with torch.device("meta"):
        assert tn.TransNormerModel(t1).layers[0].mixer.xnorm.kind == "rms"
        assert tn.TransNormerModel(t2).layers[0].mixer.xnorm.kind == "none"


def test_the_paper_literal_form_is_one_key():
    names = [name for name, _ in tn.TransNormerModel(tn.preset("t2-tiny")).named_parameters()]
    literal = [name for name, _ in tn.TransNormerModel(tn.preset("t2-tiny", position="none")).named_parameters()]
    assert any("theta" in name for name in names)
    assert literal == [name for name in names if "theta" not in name]


def test_options_merge_and_widths_follow():
    config = tn.preset("t1-lm", mixer_options={"diag": {"block_size": 128}}, hidden_size=256)
    assert config.options_of("diag")["block_size"] == 128
    assert config.options_of("diag")["kind"] == "rela"
    assert config.attention_chunk_size == 128
    assert config.intermediate_size == int(8 * 256 / 3)
    assert tn.preset("t2-lra-image", feed_forward="ffn").intermediate_size == 256


@pytest.mark.parametrize("name", tn.list_presets())
def test_every_preset_builds(name):
    config = tn.preset(name, vocab_size=64)
    with torch.device("meta"):
        tn.TransNormerModel(config)


def test_wrong_names_suggest_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 't2-tiny'"):
        tn.preset("t2-tny")
    with pytest.raises(ConfigError, match="did you mean 'hidden_size'"):
        tn.preset("t2-tiny", hiden_size=64)
    with pytest.raises(ConfigError, match="not a multiple"):
        tn.preset("t2-tiny", num_attention_heads=5)
    with pytest.raises(ConfigError, match="did you mean 'lrpe'"):
        tn.preset("t2-tiny", position="lrp")
    with pytest.raises(ConfigError, match="did you mean 'diag'"):
        tn.preset("t2-tiny", mixers=["diga", "diag", "norm", "norm"])
    with pytest.raises(ConfigError, match="has no option 'block'"):
        tn.preset("t2-tiny", mixer_options={"diag": {"block": 3}})
    with pytest.raises(ConfigError, match="names 2 layers, num_hidden_layers is 4"):
        tn.preset("t2-tiny", mixers=["diag", "norm"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"diag": {"block_size": "64"}}, "option 'block_size' must be int, got '64'"),
        ({"diag": {"block_size": True}}, "must be int, got True"),
        ({"diag": {"block_size": [64]}}, r"must be int, got \[64\]"),
        ({"diag": {"dropout": "none"}}, "must be float"),
        ({"reformer": {"num_buckets": [8, "8"]}}, r"must be int \| Sequence\[int\] \| None"),
        ({"parallel": {"first_options": 3}}, r"must be dict\[str, Any\] \| None"),
    ],
)
def test_an_option_of_the_wrong_type_is_an_error_at_once(options, message):
    with pytest.raises(ConfigError, match=message):
        tn.preset("t2-tiny", mixer_options=options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *[
            ({field: wrong}, rf"{field} must be at least 1, got {wrong}")
            for field in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
            for wrong in (0, -1)
        ],
        ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 1, got 0"),
        ({"classifier_hidden_size": 0}, "classifier_hidden_size must be at least 1, got 0"),
        ({"num_labels": 0}, "num_labels must be at least 1, got 0"),
        ({"initializer_range": -0.02}, "initializer_range must be a finite number from 0 on, got -0.02"),
        *[
            ({field: wrong}, rf"{field} must lie in \[0, 1\), got {wrong}")
            for field in ("dropout", "attention_dropout")
            for wrong in (2.0, 1.0, -0.1, float("nan"))
        ],
        ({"mixer_options": {"diag": {"dropout": 2.0}}}, r"option 'dropout' must lie in \[0, 1\), got 2.0"),
        ({"mixer_options": {"diag": {"block_size": 0}}}, "block_size must be at least 2, got 0"),
        ({"mixer_options": {"diag": {"kind": "sofmax"}}}, "unknown kind 'sofmax'"),
        ({"mixers": ["linformer"] * 4}, "linformer has no causal form"),
        ({"hidden_size": 36}, "position 'lrpe' needs an even head size, got 9"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers must be int, got '4'"),
        ({"hidden_size": 64.0}, "hidden_size must be int, got 64.0"),
        ({"dropout": "none"}, "dropout must be float, got 'none'"),
        ({"mixers": "norm"}, r"mixers must be list\[str\] \| None, got 'norm'"),
        ({"mixers": [1, 2, 3, 4]}, r"mixers must be list\[str\] \| None, got \[1, 2, 3, 4\]"),
        ({"mixer_options": {"diag": 5}}, "mixer_options must be dict"),
        ({"mixer_options": {1: {}}}, "mixer_options must be dict"),
        ({"eos_token_id": ["a"]}, "eos_token_id must be int"),
        ({"initializer_range": float("inf")}, "initializer_range must be a finite number"),
    ],
    ids=str,
)
def test_a_field_that_no_model_can_have_is_refused_when_the_config_is_made(fields, message):
    with pytest.raises(ConfigError, match=message):
        tn.preset("t2-tiny", **fields)


def test_numbers_of_numpy_and_tuples_are_as_good(tmp_path):
    fields = {"vocab_size": np.int64(300), "dropout": np.float32(0.5), "causal": np.bool_(True)}
    config = tn.preset("t2-tiny", mixers=("diag", "norm", "norm", "norm"), **fields)
    config.save_pretrained(tmp_path)
    saved = tn.TransNormerConfig.from_pretrained(tmp_path)
    assert (saved.vocab_size, saved.dropout, saved.causal) == (300, 0.5, True)
    assert saved.mixers == ["diag", "norm", "norm", "norm"]


def test_without_a_preset_too():
    with pytest.raises(ConfigError, match="dropout must lie in"):
        tn.TransNormerConfig(dropout=2.0)
    with pytest.raises(ConfigError, match="hidden_size must be int, got '64'"):
        tn.TransNormerConfig(hidden_size="64")


def test_making_a_config_draws_no_random_numbers():
    """Trying the mixers out must not change what the seed of a run gives."""
    before = torch.random.get_rng_state()
    for name in tn.list_presets():
        tn.preset(name)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_options_of_every_type_are_taken():
    fine = {"diag": {"block_size": 32, "dropout": 0}, "reformer": {"num_buckets": [2, 4]}, "flash": {}}
    fine["parallel"] = {"first": "diag", "first_options": {"block_size": 16}, "second_options": None}
    assert tn.preset("t2-tiny", mixer_options=fine).mixer_options["reformer"] == {"num_buckets": [2, 4]}


def test_only_tokens_are_drawn_for_a_scaled_embedding():
    """However many positions there are."""
    options = {"position_embedding": "learned", "scale_embedding": True, "init_scheme": "xavier"}
    model = tn.TransNormerModel(tn.preset("t2-tiny", vocab_size=256, max_position_embeddings=256, **options))
    assert model.embed_tokens.weight.std().item() == pytest.approx(model.config.hidden_size**-0.5, rel=0.05)
    assert model.embed_positions.weight.std().item() == pytest.approx(model.config.initializer_range, rel=0.05)
