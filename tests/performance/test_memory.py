"""Weights against KV cache: what fits, and which of the two a decode step reads more of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import decode_cost, parameters, weight_bytes_read
from tinyinfer.performance.hardware import find_hardware
from tinyinfer.performance.memory import (
    crossover_batch,
    crossover_context,
    fits,
    kv_bytes_read,
    largest_batch,
    memory_needed,
    require_memory,
)
from tinyinfer.performance.shapes import find_shape

# 3 x 2 x 2 heads x 6 numbers: a row of 72 numbers for each token.
TOY = ModelConfig("toy", layers=3, model_dim=14, heads=4, kv_heads=2, head_dim=6, ffn_dim=17, vocab=23, max_context=99)
H200, LLAMA = find_hardware("H200"), find_shape("llama-3-8b")


def test_memory_is_every_weight_and_a_row_for_every_token_of_every_sequence():
    assert memory_needed(TOY, batch=5, capacity=7) == 2 * parameters(TOY) + 5 * 7 * 72 * 2
    assert memory_needed(TOY, 5, 7, weight_bytes=0.5, kv_bytes=1) == 0.5 * parameters(TOY) + 5 * 7 * 72
    assert memory_needed(replace(TOY, sliding_window=3), 5, 7) == memory_needed(TOY, 5, 7)


def test_llama_3_8b_leaves_room_for_232_sequences_of_4096_on_an_h200():
    # By hand: (141e9 - 16,060,522,496) / (4,096 x 131,072) = 232.7.
    assert largest_batch(LLAMA, H200, 4096) == 232
    assert fits(H200, memory_needed(LLAMA, 232, 4096)) is True
    assert fits(H200, memory_needed(LLAMA, 233, 4096)) is False


def test_weights_that_do_not_fit_leave_room_for_no_sequence():
    assert largest_batch(find_shape("llama-3.1-405b"), H200, 1) == 0
    assert largest_batch(find_shape("llama-3-70b"), H200, 128) == 0
    assert largest_batch(find_shape("llama-3-70b"), H200, 128, weight_bytes=1) > 0


def test_nothing_is_guessed_where_the_memory_is_not_known():
    apple = find_hardware("M1 Pro")
    assert largest_batch(LLAMA, apple, 4096) is None
    assert fits(apple, 1.0) is None
    require_memory(find_shape("llama-3.1-405b"), apple, 1, 1)


def test_what_cannot_fit_is_refused_with_both_numbers():
    message = (
        r"llama-3-70b needs 142\.450 GB on H200 SXM \(141\.107 GB of weights and 1\.342 GB of KV cache for batch 1 of"
    )
    with pytest.raises(BadInput, match=message + r" 4096 tokens\), which has 141\.000 GB"):
        require_memory(find_shape("llama-3-70b"), H200, batch=1, capacity=4096)
    require_memory(LLAMA, H200, batch=232, capacity=4096)
    with pytest.raises(BadInput, match=r"which has 16\.000 GB"):
        require_memory(LLAMA, replace(H200, memory_bytes=16e9), batch=1, capacity=1)


def test_the_crossover_of_llama_3_8b_by_hand():
    # 15,009,849,344 / 131,072 = 114,516.1 rows weigh as much as the weights that a step reads.
    assert crossover_context(LLAMA) == 114_517
    assert crossover_context(LLAMA, batch=32) == 3_579
    assert crossover_batch(LLAMA, context=4096) == 28
    assert crossover_context(LLAMA, weight_bytes=0.5) == 28_630


def test_a_sliding_window_may_keep_the_cache_below_the_weights_for_ever():
    windowed = replace(LLAMA, sliding_window=4096)
    assert crossover_context(windowed) is None
    assert crossover_context(windowed, batch=32) == 3_579
    assert kv_bytes_read(windowed, 100_000) == kv_bytes_read(LLAMA, 4096)


@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from([0.5, 1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_weights_cache_and_the_written_row_are_all_that_a_step_moves(context, batch, weight_bytes, kv_bytes):
    moved = decode_cost(TOY, context, batch, weight_bytes, kv_bytes).bytes_moved
    written = batch * TOY.kv_bytes_per_token(kv_bytes)
    assert moved == weight_bytes_read(TOY, weight_bytes) + kv_bytes_read(TOY, context, batch, kv_bytes) + written


@given(st.integers(1, 60), st.sampled_from([1, 2, 4]))
def test_crossovers_are_the_first_context_and_the_first_batch_to_reach_the_weights(size, kv_bytes):
    weights = weight_bytes_read(TOY, 2)
    context, batch = crossover_context(TOY, size, 2, kv_bytes), crossover_batch(TOY, size, 2, kv_bytes)
    assert kv_bytes_read(TOY, context, size, kv_bytes) >= weights
    assert context == 1 or kv_bytes_read(TOY, context - 1, size, kv_bytes) < weights
    assert kv_bytes_read(TOY, size, batch, kv_bytes) >= weights
    assert batch == 1 or kv_bytes_read(TOY, size, batch - 1, kv_bytes) < weights


@given(st.integers(1, 5000), st.integers(2, 200))
def test_the_largest_batch_fits_and_one_more_does_not(capacity, gigabytes):
    device = replace(H200, memory_bytes=gigabytes * 1e9)
    most = largest_batch(LLAMA, device, capacity)
    assert most == 0 or fits(device, memory_needed(LLAMA, most, capacity))
    assert not fits(device, memory_needed(LLAMA, most + 1, capacity))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: memory_needed(TOY, 0, 5), "batch is 0"),
        (lambda: largest_batch(TOY, H200, 0), "capacity is 0"),
        (lambda: crossover_context(TOY, batch=0), "batch is 0"),
        (lambda: crossover_batch(TOY, context=0), "context is 0"),
    ],
)
def test_wrong_input_is_refused_by_name(call, message):
    with pytest.raises(BadInput, match=message):
        call()
