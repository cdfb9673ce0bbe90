"""Every method of the zoo runs by name in every model config it can serve, has the paper's size, and decodes."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.mixers.registry import list_mixers, mixer_class
from transnormer.models.presets import METHODS, SIZES, preset_fields

CAUSAL = [method for method in METHODS if f"{method}-tiny" in tn.list_presets()]
COMBINED = ["sequential", "parallel"]
PAD = 256


def parameters(model_class: type, name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model_class(tn.preset(name)).parameters())


@pytest.mark.parametrize("method", CAUSAL)
def test_shapes_can_be_had_without_memory(method):
    """A forward on the meta device: whoever reckons sizes before there is a model."""
    with torch.device("meta"):
        model = tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny"))
        assert model(torch.zeros(2, 70, dtype=torch.long)).logits.shape == (2, 70, 259)


# Where the paper prints two digits of a million, these are all digits of the shells that give them.
@pytest.mark.parametrize(
    ("name", "millions", "count"),
    [
        ("flash_quad-lm", 153.51, 153_514_752),
        ("flash-lm", 153.52, 153_519_872),
        ("long_short-lm", 159.46, 159_461_904),
        ("performer-lm", 156.00, 156_000_256),
    ],
)
def test_language_models_have_the_papers_parameter_counts(name, millions, count):
    assert parameters(tn.TransNormerForCausalLM, name) == count
    assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("name", "millions"),
    [("flash_quad-mlm", 127.11), ("flash-mlm", 127.12), ("long_short-mlm", 128.28), ("performer-mlm", 124.70)],
)
def test_masked_language_models_have_the_papers_parameter_counts(name, millions):
    assert round(parameters(tn.TransNormerForMaskedLM, name) / 1e6, 2) == millions


@pytest.mark.parametrize("method", METHODS)
def test_lra_models_are_of_the_size_of_skyformers(method):
    """Within 5 % of the vanilla model, but for what a method must add or can leave out."""
    count = parameters(tn.TransNormerForSequenceClassification, f"{method}-lra-image")
    vanilla = parameters(tn.TransNormerForSequenceClassification, "vanilla-lra-image")
    length, width, layers = 1024, 64, 2
    extra = {
        "linformer": layers * 2 * 128 * length,  # the projection of each head
        "reformer": -layers * (width**2 + 3 * width),  # one projection for queries and keys, no bias on it
        "long_short": layers * (64 * width + 64 + 4 * width),  # two times 32 landmarks, two norms
    }.get(method, 0)
    assert count == pytest.approx(vanilla + extra, rel=0.05)


@pytest.mark.parametrize("name", tn.list_presets())
def test_what_is_listed_without_torch_is_the_preset(name):
    listed = vars(preset_fields(name))
    assert listed == {field: getattr(tn.preset(name), field) for field in listed}


def test_every_mixer_is_a_method_and_none_is_offered_where_it_cannot_serve():
    named = {name for method in METHODS.values() for name in [method.get("mixers")] if name}
    assert named == set(list_mixers()) - {"diag", "norm", *COMBINED}
    listed = tn.list_presets()
    for method, settings in METHODS.items():
        for size in SIZES:
            if size in ("350m", "1b") and method not in ("t1", "t2", "llama"):
                assert f"{method}-{size}" not in listed  # these sizes are no protocol of the paper to compare in
                continue
            mixers = [settings["mixers"]] if "mixers" in settings else ["diag", "norm"]
            causal = SIZES[size]["causal"]
            able = all(getattr(mixer_class(m).traits, "causal" if causal else "bidirectional") for m in mixers)
            assert (f"{method}-{size}" in listed) == able
    assert "linformer-mlm" in listed
    assert "linformer-lm" not in listed


def test_a_request_that_a_method_cannot_serve_names_those_that_can():
    with pytest.raises(ConfigError, match=r"linformer has no causal form.*flash_quad"):
        tn.preset("linformer-lm")
    assert not tn.preset("linformer-tiny", causal=False).causal
    assert tn.preset("softmax-lm").mixers == tn.preset("vanilla-lm").mixers


def test_the_shells_of_flash_and_long_short_are_their_own():
    flash, masked, long_short = (tn.preset(name) for name in ("flash-lm", "flash-mlm", "long_short-lm"))
    assert (flash.norm, flash.norm_first, flash.final_norm, flash.num_hidden_layers) == ("scale", True, "layer", 10)
    assert (masked.norm, masked.norm_first, masked.final_norm, masked.num_hidden_layers) == ("layer", True, "none", 24)
    assert (long_short.norm_first, long_short.final_norm, long_short.lm_head_bias) == (False, "none", True)
    assert long_short.position_embedding == "none"
    assert tn.preset("performer-lm").options_of("performer")["num_features"] == 64
    assert tn.preset("performer-lra-text").options_of("performer")["num_features"] == 128
    assert tn.preset("informer-lra-listops").options_of("informer")["factor"] == 17


def small(name: str) -> torch.nn.Module:
    """The preset with its own model config, but of a small width and two layers."""
    torch.manual_seed(0)
    config = tn.preset(name, vocab_size=259, hidden_size=32, num_attention_heads=2, num_hidden_layers=2, dropout=0.0)
    if config.causal:
        return tn.TransNormerForCausalLM(config)
    return (tn.TransNormerForMaskedLM if name.endswith("mlm") else tn.TransNormerForSequenceClassification)(config)


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [n for n in tn.list_presets() if n.endswith(("lm", "lra-image", "lra-text", "tiny"))])
def test_every_method_trains_in_every_shell(name):
    model = small(name).train()
    ids, mask = tokens(2, 75), torch.ones(2, 75, dtype=torch.long)
    mask[1, 50:] = 0
    labels = torch.tensor([0, 1]) if "-lra-" in name else ids.masked_fill(mask == 0, -100)
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    assert loss.isfinite()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", [n for n in tn.list_presets() if n.endswith(("-lm", "-mlm"))])
def test_bfloat16_autocast_stays_near_float32(name):
    model = small(name).eval()
    with torch.no_grad():
        exact = model(input_ids=tokens(2, 75)).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = model(input_ids=tokens(2, 75)).logits
    # The median token: rounding may send a few to another hash bucket.
    assert ((rounded.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).median() < 0.01


@pytest.mark.parametrize("method", CAUSAL)
def test_saved_and_loaded_models_are_equal(method, tmp_path):
    model = small(f"{method}-tiny").eval()
    model.save_pretrained(tmp_path)
    again = tn.TransNormerForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(model(tokens(1, 40)).logits, again(tokens(1, 40)).logits)


def decoder(method: str) -> tn.TransNormerForCausalLM:
    torch.manual_seed(0)
    preset, mixers = ("t2-tiny", [method] * 2) if method in COMBINED else (f"{method}-tiny", None)
    given = {} if mixers is None else {"mixers": mixers}
    config = tn.preset(preset, hidden_size=32, num_attention_heads=2, num_hidden_layers=2, **given)
    model = tn.TransNormerForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # FLASH starts with queries and keys near zero
    return model


@pytest.mark.parametrize("method", [*CAUSAL, *COMBINED])
def test_prefill_in_pieces_equals_prefill_at_once(method):
    model = decoder(method)
    ids, cache = tokens(2, 200), tn.DecodeCache(model.config)
    with torch.no_grad():
        pieces = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 70), (70, 71), (71, 200))]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids).logits, atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", ["flash", "flash_quad", "long_short", *COMBINED])
def test_transformers_own_cache_holds_memory_and_keys_of_any_width(method):
    model = decoder(method)
    ids, cache = tokens(2, 100), DynamicCache(config=model.config)
    with torch.no_grad():
        pieces = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 70), (70, 100))]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids).logits, atol=1e-9, rtol=0)
    assert cache.get_seq_length() == 100


@pytest.mark.parametrize("method", [*CAUSAL, *COMBINED])
def test_generation_from_a_left_padded_batch_with_beams_needs_no_cache_to_be_right(method):
    model = decoder(method)
    ids, mask = tokens(2, 66), torch.ones(2, 66, dtype=torch.long)
    ids[1, :29], mask[1, :29] = PAD, 0
    arguments = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": 2, "do_sample": False, "pad_token_id": PAD}
    assert torch.equal(model.generate(ids, **arguments), model.generate(ids, **arguments, use_cache=False))


@pytest.mark.parametrize("method", [*CAUSAL, *COMBINED])
def test_the_cache_grows_exactly_where_the_traits_say_so(method):
    model = decoder(method)
    cache, sizes = tn.DecodeCache(model.config), []
    with torch.no_grad():
        for _ in range(2):
            model(tokens(1, 300), past_key_values=cache, logits_to_keep=1)
            model(tokens(1, 1), past_key_values=cache)
            sizes.append(tn.state_bytes(cache))
    recurrent = all(mixer_class(name).traits.recurrent for name in model.config.mixers)
    assert (sizes[0] == sizes[1]) == recurrent
