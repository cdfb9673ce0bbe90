"""What a Hugging Face user expects: Auto classes after `import transnormer`, save and load, Trainer, compile."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, Trainer, TrainingArguments
from transformers import AutoModelForSequenceClassification as AutoClassifier

import transnormer as tn
from transnormer.errors import ConfigError


def small(name: str, **overrides: object) -> tn.TransNormerConfig:
    return tn.preset(name, vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, **overrides)


@pytest.mark.parametrize(
    ("auto", "model_class", "name"),
    [
        (AutoModel, tn.TransNormerModel, "t2-tiny"),
        (AutoModelForCausalLM, tn.TransNormerForCausalLM, "t1-tiny"),
        (AutoModelForCausalLM, tn.TransNormerForCausalLM, "vanilla-tiny"),
        (AutoModelForMaskedLM, tn.TransNormerForMaskedLM, "t2-mlm"),
        (AutoClassifier, tn.TransNormerForSequenceClassification, "t2-lra-text"),
    ],
)
def test_saved_models_load_by_auto_class_bit_for_bit(auto, model_class, name, tmp_path):
    model = model_class(small(name)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # trained weights, not initial ones that a re-initialisation could hit
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path).eval()
    assert type(loaded) is model_class
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    ids = torch.randint(0, 300, (2, 70))
    assert torch.equal(model(ids)[0], loaded(ids)[0])


@pytest.mark.parametrize("method", ["t2", "performer", "reformer", "flash", "linear_elu"])
def test_layers_on_the_disk_give_the_same_logits(method, tmp_path):
    """transformers initialises what lies on the disk; the buffers, which it does load, must stay."""
    heads = {} if method == "flash" else {"num_attention_heads": 2}
    model = tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny", hidden_size=32, num_hidden_layers=2, **heads)).eval()
    model.save_pretrained(tmp_path)
    where = dict.fromkeys(
        ("model.embed_tokens", "model.dropout", "model.layers.0", "model.final_norm", "lm_head"), "cpu"
    )
    where["model.layers.1"] = "disk"
    offloaded = tn.TransNormerForCausalLM.from_pretrained(tmp_path, device_map=where, offload_folder=tmp_path / "disk")
    ids = torch.randint(0, 256, (2, 100))
    with torch.no_grad():
        assert torch.equal(offloaded(ids).logits, model(ids).logits)


def test_half_precision_keeps_the_angles_of_rotations_wherever_it_is_asked_for(tmp_path):
    model = tn.TransNormerForCausalLM(small("t2-tiny")).eval()
    ids = torch.arange(200)[None]
    model.save_pretrained(tmp_path / "float32")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "float32", dtype=torch.bfloat16).eval()
    assert loaded.dtype == torch.bfloat16
    angles = [key for key in loaded.state_dict() if ".rotation." in key]
    assert angles
    for key in angles:
        assert torch.equal(loaded.state_dict()[key], model.state_dict()[key])
    # Folders that were saved with rounded angles give the logits they always gave.
    rounded = model.to(torch.bfloat16)
    rounded.save_pretrained(tmp_path / "rounded")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "rounded").eval()
    assert torch.equal(again(ids).logits, rounded(ids).logits)


def test_config_round_trip(tmp_path):
    config = small("t1-tiny", mixer_options={"diag": {"block_size": 16}})
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_diff_dict() == config.to_diff_dict()
    assert loaded.options_of("diag")["block_size"] == 16
    assert "mixers" in json.loads((tmp_path / "config.json").read_text())


def test_a_new_head_on_a_pretrained_backbone_keeps_the_backbone(tmp_path):
    pretrained = tn.TransNormerForMaskedLM(small("t2-mlm"))
    pretrained.save_pretrained(tmp_path)
    classifier = AutoClassifier.from_pretrained(tmp_path, num_labels=3)
    for key, value in pretrained.model.state_dict().items():
        assert torch.equal(classifier.model.state_dict()[key], value), key
    assert classifier.classifier.dense.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert classifier(torch.randint(0, 300, (2, 9))).logits.isfinite().all()


def test_import_is_cheap_and_registers_when_transformers_arrives_later():
    code = """
import sys
import transnormer
heavy = {"torch", "transformers", "numpy", "pydantic", "yaml", "typer", "rich"} & set(sys.modules)
assert not heavy, heavy
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("transnormer", hidden_size=32, num_attention_heads=2)
model = AutoModelForCausalLM.from_config(config)
assert type(model) is transnormer.TransNormerForCausalLM
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_trainer_trains_our_model(tmp_path):
    torch.manual_seed(0)
    text = torch.arange(64).remainder(7)  # a period the model must learn
    model = tn.TransNormerForCausalLM(small("t2-tiny"))
    samples = [{"input_ids": text, "labels": text} for _ in range(16)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        logging_steps=10,
        save_steps=15,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=samples)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0]
    resumed = Trainer(model=tn.TransNormerForCausalLM(small("t2-tiny")), args=arguments, train_dataset=samples)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    for key, value in trainer.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value)


def test_trainer_evaluates_and_predicts_without_the_decode_state(tmp_path):
    text = torch.arange(20)
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True)
    model = tn.TransNormerForCausalLM(small("t2-tiny"))
    trainer = Trainer(model=model, args=arguments, eval_dataset=[{"input_ids": text, "labels": text}] * 3)
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (3, 20, 300)


def test_torch_compile_sees_the_whole_model():
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(small("t2-tiny")).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = torch.randint(0, 300, (2, 70))
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits)


def test_bfloat16_stays_close_to_float32():
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(small("t2-tiny")).eval()
    ids = torch.randint(0, 300, (2, 200))
    with torch.no_grad():
        exact = model(ids).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast = model(ids).logits.float()
        half = model.bfloat16()(ids).logits.float()
    for approximate in (autocast, half):
        assert (approximate - exact).abs().mean() < 0.05 * exact.abs().mean()


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("cls", [tn.TransNormerForCausalLM, tn.TransNormerModel, tn.TransNormerConfig])
def test_a_folder_of_another_architecture_is_refused(cls, kind, tmp_path, caplog):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2} if kind == "gpt2" else {"hidden_size": 16}
    AutoConfig.for_model(kind, **sizes).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"{tmp_path} holds a model of type '{kind}', not of type 'trans") as caught:
        cls.from_pretrained(tmp_path)
    assert "AutoModelForCausalLM.from_pretrained" in str(caught.value.hint)
    assert not caplog.records  # transformers would only warn


def test_the_weights_of_another_architecture_are_not_replaced_by_random_ones(tmp_path):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 30}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="of type 'gpt2'"):
        tn.TransNormerForCausalLM.from_pretrained(tmp_path)
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)).__name__ == "GPT2LMHeadModel"


def test_a_folder_names_its_type_and_a_dictionary_made_by_hand_need_not(tmp_path):
    small("t2-tiny").save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert tn.TransNormerConfig.from_dict(dict(fields)).to_dict() == small("t2-tiny").to_dict()
    assert fields.pop("model_type") == "transnormer"
    assert tn.TransNormerConfig.from_dict(dict(fields)).hidden_size == 32
    with pytest.raises(ConfigError, match="the dictionary holds a model of type 'gpt2'"):
        tn.TransNormerConfig.from_dict({**fields, "model_type": "gpt2"})
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=f"{tmp_path} names no model_type"):
        tn.TransNormerForCausalLM.from_pretrained(tmp_path)
