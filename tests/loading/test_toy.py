"""The page-sized model: it says what its card says, transformers agrees, and its script makes it again."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.loading.checkpoint import EMBEDDED_MODELS

FOLDER = EMBEDDED_MODELS / "toy"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def toy():
    return tinyinfer.load("toy")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "training/train_toy.py"))


def test_it_is_listed_and_has_the_sketch_s_shape(toy):
    assert tinyinfer.available_models()["toy"] == "embedded"
    config = toy.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim, config.vocab) == (2, 2, 2, 4, 12)
    assert config.bos_id is None and config.eos_ids == (1,)
    assert config.kv_bytes_per_token(4) == 128


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_it_answers_every_prompt_that_it_learned_and_then_ends(script, backend):
    toy = tinyinfer.load("toy", backend=backend)
    for prompt, answer in script["ANSWERS"].items():
        done = toy.generate(prompt, max_new_tokens=10)
        assert done.text == answer
        assert done.token_ids[-1] == 1 and len(done.token_ids) == len(answer) + 1
    assert script["ANSWERS"]["写诗"] == "秋天的诗"
    assert len(set(script["ANSWERS"].values())) == len(script["ANSWERS"])  # it is no constant


def test_the_card_lists_the_vocabulary_and_the_answers(script, toy):
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"in order: (.*) \|", card)[1].replace("`", "").split()
    assert listed == [toy.tokenizer.inner.id_to_token(token_id) for token_id in range(12)]
    for prompt, answer in script["ANSWERS"].items():
        assert f"| {prompt} | {answer} |" in card
    assert f"{sum(weight.size for weight in toy.weights.values()):,}" in card


def test_a_prompt_is_its_characters_and_nothing_else(toy):
    assert toy.tokenizer.encode("写诗") == [2, 3]
    with pytest.raises(BadInput, match="does not know '黄'"):
        toy.tokenizer.encode("黄")


def test_transformers_reads_the_same_folder_and_agrees(toy):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    for text in ("写诗秋天的诗", "写河白日的河海", "山"):
        ids = toy.tokenizer.encode(text)
        assert tokenizer.encode(text) == ids
        with torch.no_grad():
            logits = theirs(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        assert np.abs(toy.logits(ids) - logits).max() <= 1e-4
        session = toy.start(len(ids))
        cached = [session.decode_step(token_id) for token_id in ids]
        assert np.abs(np.stack(cached) - logits).max() <= 1e-4


def test_its_script_makes_it_again(script, tmp_path, toy):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokenizer = script["build_tokenizer"]()
        script["save"](script["train"](tokenizer, script["STEPS"]), tokenizer, tmp_path / "toy")
    finally:
        torch.set_num_threads(threads)
    again = tinyinfer.load(tmp_path / "toy")
    for prompt, answer in script["ANSWERS"].items():
        assert again.generate(prompt, max_new_tokens=10).text == answer
    assert json.loads((tmp_path / "toy/tokenizer.json").read_text()) == json.loads(
        (FOLDER / "tokenizer.json").read_text()
    )
    ids = toy.tokenizer.encode("写诗秋天的")
    # Sums are rounded differently on other processors, and training magnifies that.
    assert np.abs(again.logits(ids) - toy.logits(ids)).max() <= 0.5
    assert "train_toy" not in sys.modules
