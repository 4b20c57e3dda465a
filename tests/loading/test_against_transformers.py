"""Hugging Face transformers in float32, eager attention, reads the same files: logits and greedy tokens must agree."""

import functools
import json
import os
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import gguf
import numpy as np
import pytest
import torch
import transformers
from checkpoint_files import character_tokenizer

import tinyinfer
from tinyinfer.loading.checkpoint import EMBEDDED_MODELS, smollm2_path

SIZES = {
    "vocab_size": 41,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 37,
    "max_position_embeddings": 131,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# The stretch acts on some pairs and not on others: head_dim 10 turns from 1 to 10,000 ** -0.8 radians per position.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CHECKPOINTS = {
    "llama": ("Llama", {"tie_word_embeddings": False}, torch.float32),
    "llama with one kv head, tied, bf16": (
        "Llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        torch.bfloat16,
    ),
    "llama with rope_type llama3, fp16": ("Llama", {"rope_parameters": LLAMA3_ROPE}, torch.float16),
    "llama with attention bias": ("Llama", {"attention_bias": True, "tie_word_embeddings": False}, torch.float32),
    "mistral, fp16": ("Mistral", {"sliding_window": None}, torch.float16),
    "mistral with a window longer than the text": ("Mistral", {"sliding_window": 127}, torch.float32),
    "qwen2, bf16": ("Qwen2", {"tie_word_embeddings": False}, torch.bfloat16),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}, torch.float32),
    "qwen3": ("Qwen3", {"tie_word_embeddings": False}, torch.float32),
    "qwen3 with attention bias, tied, fp16": (
        "Qwen3",
        {"attention_bias": True, "tie_word_embeddings": True},
        torch.float16,
    ),
}


def save_random_checkpoint(folder: Path, family: str, changes: dict, dtype: torch.dtype, **saving) -> Path:
    """A checkpoint as transformers writes it, with weights large enough that every part of the layer matters."""
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5
            weight.copy_(("norm" in name) + spread * torch.randn(weight.shape, generator=generator))
    model.to(dtype).save_pretrained(folder, **saving)
    character_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def read_with_transformers(folder: Path, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, **options
    ).eval()


@torch.no_grad()
def their_greedy(model, prompt: list[int], steps: int) -> list[int]:
    fed, cache, chosen = prompt, transformers.DynamicCache(), []
    for _ in range(steps):
        logits = model(torch.tensor([fed]), cache=cache, use_cache=True).logits
        chosen.append(int(logits[0, -1].argmax()))
        fed = chosen[-1:]
    return chosen


@torch.no_grad()
def their_logits(model, token_ids: list[int]) -> np.ndarray:
    return model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()


def assert_agrees(ours: tinyinfer.LanguageModel, theirs, seed: int, tolerance: float = 1e-4, steps: int = 64):
    """A random prompt, then `steps` greedy tokens: naive logits, cached logits and tokens against transformers."""
    prompt = np.random.default_rng(seed).integers(2, ours.config.vocab, size=11 + 2 * seed).tolist()
    tokens = their_greedy(theirs, prompt, steps)
    expected = their_logits(theirs, prompt + tokens)

    session = ours.start(capacity=len(prompt) + steps)
    session.prefill(prompt[:5])
    cached = [session.prefill(prompt[5:])]
    chosen = [int(cached[-1].argmax())]
    while len(chosen) < steps:
        cached.append(session.decode_step(chosen[-1]))
        chosen.append(int(cached[-1].argmax()))
    assert chosen == tokens
    assert np.abs(np.stack(cached) - expected[len(prompt) - 1 : -1]).max() <= tolerance
    assert np.abs(ours.logits(prompt + tokens) - expected).max() <= tolerance
    assert np.abs(expected).max() > 1  # logits near 0 would agree whatever happened


@pytest.mark.parametrize(("family", "changes", "dtype"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_random_checkpoint_agrees_with_transformers(tmp_path, family, changes, dtype):
    folder = save_random_checkpoint(tmp_path, family, changes, dtype)
    ours, theirs = tinyinfer.load(folder), read_with_transformers(folder)
    for seed in (1, 2):
        assert_agrees(ours, theirs, seed)


def test_a_sharded_checkpoint_agrees_with_transformers(tmp_path):
    folder = save_random_checkpoint(tmp_path, "Qwen3", {}, torch.float32, max_shard_size="20KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert_agrees(tinyinfer.load(folder), read_with_transformers(folder), seed=3)


@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 777.0}, LLAMA3_ROPE | {"rope_theta": 500.0}])
def test_both_spellings_of_rope_in_config_json_agree_with_transformers(tmp_path, rope):
    folder = save_random_checkpoint(tmp_path, "Llama", {"rope_parameters": rope}, torch.float32)
    new = tinyinfer.load(folder)
    fields = json.loads((folder / "config.json").read_text())
    assert fields.pop("rope_parameters") == rope  # what transformers 5 writes
    fields["rope_theta"] = rope["rope_theta"]
    fields["rope_scaling"] = None
    if rope["rope_type"] != "default":
        fields["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    (folder / "config.json").write_text(json.dumps(fields))
    old = tinyinfer.load(folder)
    assert old.config == new.config
    assert old.config.rope_base == rope["rope_theta"]
    assert_agrees(old, read_with_transformers(folder), seed=4)


def test_tang_agrees_with_transformers(tang):
    theirs = read_with_transformers(EMBEDDED_MODELS / "tang")
    for seed in (1, 2, 3):
        assert_agrees(tang, theirs, seed)
    prompt = tang.tokenizer.encode("白日依山")
    assert np.abs(tang.logits(prompt) - their_logits(theirs, prompt)).max() <= 1e-4


def test_tang_s_tokenizer_agrees_with_transformers(tang):
    theirs = transformers.AutoTokenizer.from_pretrained(EMBEDDED_MODELS / "tang", local_files_only=True)
    text = "白日依山尽，黄河入海流。"
    assert tang.tokenizer.encode(text) == theirs.encode(text)
    assert tang.tokenizer.decode(tang.tokenizer.encode(text)) == text


def test_smollm2_agrees_with_transformers(smollm2, monkeypatch):
    path = smollm2_path()
    # The file's header need not be parsed anew for each question.
    monkeypatch.setattr(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))
    monkeypatch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
    theirs = read_with_transformers(path.parent, gguf_file=path.name)
    assert_agrees(smollm2, theirs, seed=1, tolerance=5e-4)
