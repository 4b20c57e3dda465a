"""Formulas against runs: the counter sees shapes only and shares no code with `cost.py`."""

import numpy as np
import pytest

from tinyinfer.model import numpy_ops
from tinyinfer.performance.cost import (
    cached_generation_cost,
    decode_cost,
    naive_generation_cost,
    parameters,
    prefill_cost,
)
from tinyinfer.performance.counting import counted
from tinyinfer.performance.shapes import find_shape
from tinyinfer.serving.language_model import LanguageModel


@pytest.fixture(scope="module")
def watched(tang):
    return counted(tang)


@pytest.mark.parametrize(("past", "new"), [(0, 1), (0, 13), (7, 5)])
def test_a_dense_masked_prefill_does_the_full_square(watched, past, new):
    model, tally = watched
    session = model.start(past + new)
    if past:
        session.prefill([5] * past)
    tally.reset()
    session.prefill([6] * new)
    assert tally.flops == prefill_cost(model.config, new, past, attention="full_square", logits="last").flops


def test_a_long_prefill_computes_each_block_up_to_its_last_row(watched):
    model, tally = watched
    rows, new = numpy_ops.ROWS_PER_BLOCK, 2 * numpy_ops.ROWS_PER_BLOCK - 9
    tally.reset()
    model.start(new).prefill([6] * new)
    exact = prefill_cost(model.config, new, attention="exact_causal").flops
    pairs_too_many = rows * rows + (new - rows) * new - new * (new + 1) // 2
    assert tally.flops - exact == pairs_too_many * 4 * model.config.heads * model.config.head_dim * model.config.layers


def test_a_decode_step_counts_its_own_token_among_the_keys(watched):
    model, tally = watched
    session = model.start(12)
    session.prefill([5] * 11)
    tally.reset()
    session.decode_step(6)
    assert tally.flops == decode_cost(model.config, context=12).flops
    assert tally.matrix_products == decode_cost(model.config, context=12, fused=True).launches


def test_products_one_by_one_do_the_same_work_in_more_pieces(tang):
    apart = LanguageModel(tang.config, tang.weights, tang.tokenizer, numpy_ops, fused=False)
    model, tally = counted(apart)
    session = model.start(12)
    session.prefill([5] * 11)
    tally.reset()
    session.decode_step(6)
    expected = decode_cost(model.config, context=12, fused=False)
    assert (tally.flops, tally.matrix_products) == (expected.flops, expected.launches)


def test_the_naive_loops_do_exact_causal_attention_and_all_logits(watched):
    model, tally = watched
    tally.reset()
    model.logits([5] * 13)
    assert tally.flops == prefill_cost(model.config, 13, attention="exact_causal", logits="all").flops


def test_a_whole_answer_naive_and_cached(watched):
    model, tally = watched
    prompt, new_tokens = [5, 6, 7, 8], 6
    tally.reset()
    ids = list(prompt)
    for _ in range(new_tokens):
        ids.append(int(np.argmax(model.logits(ids)[-1])))
    naive = tally.flops
    tally.reset()
    session = model.start(len(prompt) + new_tokens - 1)
    session.prefill(prompt)
    for token_id in ids[4:-1]:
        session.decode_step(token_id)
    masked_pairs = 4 * 3 // 2  # the dense prefill also multiplies what its mask then drops
    extra = masked_pairs * 4 * model.config.heads * model.config.head_dim * model.config.layers
    assert tally.flops == cached_generation_cost(model.config, 4, new_tokens).flops + extra
    assert naive > 4 * tally.flops
    expected = naive_generation_cost(model.config, 4, new_tokens).flops
    # The naive function turns every row into logits; the formula counts the last row only.
    assert naive == expected + sum(2 * model.config.model_dim * model.config.vocab * (n - 1) for n in range(4, 10))


def test_pytorchs_counter_finds_the_same_in_hugging_faces_llama_3_8b():
    """Convention: full-square attention, as the products are written. On the meta device: shapes without numbers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config, batch, prompt = find_shape("llama-3-8b"), 3, 17
    sizes = transformers.LlamaConfig(
        hidden_size=config.model_dim, num_hidden_layers=config.layers, num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads, intermediate_size=config.ffn_dim, vocab_size=config.vocab,
        attn_implementation="sdpa",
    )  # fmt: skip

    def count(new, seen, cache=None, **options):
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            ids, mask = torch.zeros((batch, new), dtype=torch.long), torch.ones((batch, 1, new, seen), dtype=torch.bool)
            answer = llama(ids, mask, None, cache, use_cache=True, **options)
        return counter.get_total_flops(), answer.past_key_values

    with torch.device("meta"):
        llama = transformers.LlamaForCausalLM(sizes).eval()
        every, _ = count(prompt, prompt)
        last, cache = count(prompt, prompt, logits_to_keep=1)
        step, _ = count(1, prompt + 1, cache)
    assert sum(weight.numel() for weight in llama.parameters()) == parameters(config)
    assert every == prefill_cost(config, prompt, batch=batch, attention="full_square", logits="all").flops
    assert last == prefill_cost(config, prompt, batch=batch, attention="full_square").flops
    assert step == decode_cost(config, context=prompt + 1, batch=batch).flops
