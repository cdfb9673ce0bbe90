"""Adapters of `peft`: LoRA without naming targets, trained, saved, loaded and merged."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import transnormer as tn
from transnormer.models.hub import register_auto_classes

peft = pytest.importorskip("peft")


def model_of(method: str) -> tn.TransNormerForCausalLM:
    torch.manual_seed(0)
    heads = {} if method.startswith("flash") else {"num_attention_heads": 2}
    return tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny", hidden_size=32, num_hidden_layers=2, **heads))


def ids_of(length: int = 40) -> torch.Tensor:
    return torch.randint(0, 256, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", ["t1", "t2", "vanilla", "reformer", "flash", "performer"])
def test_lora_needs_no_targets_in_any_layer(method):
    adapted = peft.get_peft_model(model_of(method), peft.LoraConfig(task_type="CAUSAL_LM", r=4))
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name for name in trained)
    for layer in (0, 1):
        assert len([name for name in trained if f".layers.{layer}.mixer." in name]) == 4  # A and B of two projections


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_learns_and_survives_the_disk_and_the_merge(checkpointing, tmp_path):
    model, ids = model_of("t2"), ids_of()
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4))
    if checkpointing:
        adapted.gradient_checkpointing_enable()
        adapted.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.03)
    losses = []
    for _ in range(15):
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
    adapted.eval()
    expected = adapted(input_ids=ids).logits
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(model_of("t2"), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, expected)
    assert loaded.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape == (2, 43)
    merged = loaded.merge_and_unload()
    assert type(merged) is tn.TransNormerForCausalLM
    torch.testing.assert_close(merged(ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_the_targets_are_known_whichever_is_imported_first(monkeypatch):
    targets = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    monkeypatch.delitem(targets, "transnormer")
    register_auto_classes()  # what `import transnormer` does when peft is there
    assert "q_proj" in targets["transnormer"]
    code = """
import transnormer, peft.utils.constants as constants
assert "q_proj" in constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["transnormer"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
