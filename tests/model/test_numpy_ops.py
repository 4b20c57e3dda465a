import csv
from pathlib import Path

import numpy as np
import pytest
from random_models import make_config

from tinyinfer import faults
from tinyinfer.model import numpy_ops as ops
from tinyinfer.model.config import RopeScaling

ORACLES = Path(__file__).parent.parent / "oracles"


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_softmax_agrees_with_the_published_table():
    with (ORACLES / "softmax_values.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 7
    for row in rows:
        scores, expected = (np.array(row[column].split(), float) for column in ("input", "softmax"))
        np.testing.assert_allclose(ops.softmax(scores.astype(np.float64)), expected, atol=1e-15, rtol=0)


def test_only_a_mask_or_underflow_makes_a_zero():
    assert ops.softmax(np.array([0, 1, 2, 1], np.float32)).min() > 0.07
    assert ops.softmax(np.array([0, -103], np.float32))[1] > 0
    assert ops.softmax(np.array([0, -105], np.float32))[1] == 0  # below the smallest subnormal float32


def test_softmax_does_not_overflow():
    assert ops.softmax(np.array([1e30, 1e30], np.float32)).tolist() == [0.5, 0.5]


def test_softmax_in_place_is_softmax():
    scores = random(5, 7)
    expected = ops.softmax(scores)
    assert ops.softmax(scores, out=scores) is scores
    np.testing.assert_array_equal(scores, expected)


def test_attention_by_hand_gives_the_known_row():
    # q.k of the last token is [0, 2, 4, 2] at head_dim 4, so scaled [0, 1, 2, 1]; V is the identity and shows weights.
    keys = np.array([[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]], np.float32)[:, None]
    query = np.ones((1, 1, 4), np.float32)
    weights = ops.attention(query, keys, np.eye(4, dtype=np.float32)[:, None])[0, 0]
    np.testing.assert_allclose(weights, [0.07232949, 0.19661193, 0.53444665, 0.19661193], atol=1e-7)


def test_a_chunk_after_a_prefix_sees_the_prefix_and_its_own_past():
    assert ops.causal_mask(2, 5).sum(axis=1).tolist() == [4, 5]  # 3 cached, 2 new
    queries, keys, values = random(16, 3, 10), random(16, 3, 10), random(16, 3, 10)
    whole = ops.attention(queries, keys, values)
    chunk = ops.attention(queries[7:], keys, values)
    np.testing.assert_allclose(chunk, whole[7:], atol=1e-6)


def test_many_rows_in_blocks_give_what_one_block_gives():
    past, new = 37, 2 * ops.ROWS_PER_BLOCK + 19
    queries, keys, values = random(new, 6, 10), random(past + new, 2, 10), random(past + new, 2, 10)
    expected = ops.attend_block(queries, keys, values)
    np.testing.assert_allclose(ops.attention(queries, keys, values), expected, atol=1e-6)


def test_one_query_attends_every_key():
    values = np.eye(5, dtype=np.float32)[:, None]
    weights = ops.attention(np.zeros((1, 1, 5), np.float32), np.zeros((5, 1, 5), np.float32), values)
    np.testing.assert_allclose(weights[0, 0], [0.2] * 5, atol=1e-7)


def test_query_heads_share_the_keys_of_their_own_group():
    queries, keys, values = random(5, 6, 10), random(7, 2, 10), random(7, 2, 10)
    expected = ops.attention(queries, keys.repeat(3, axis=1), values.repeat(3, axis=1))
    np.testing.assert_allclose(ops.attention(queries, keys, values), expected, atol=1e-6)


def test_rope_rotates_half_split_pairs():
    config = make_config(head_dim=4)
    x = np.array([[[1, 0, 0, 0]]], np.float32)
    rotated = ops.rope(x, *ops.rope_angles(np.array([1]), ops.rope_frequencies(config)))
    np.testing.assert_allclose(rotated[0, 0], [0.5403, 0, 0.8415, 0], atol=5e-5)
    np.testing.assert_array_equal(ops.rope(x, *ops.rope_angles(np.array([0]), ops.rope_frequencies(config))), x)


def test_rope_keeps_lengths_and_scores_depend_on_distance_only():
    config = make_config()
    query, key = random(1, 1, 10), random(1, 1, 10)

    def score(query_position, key_position):
        q = ops.rope(query, *ops.rope_angles(np.array([query_position]), ops.rope_frequencies(config)))
        k = ops.rope(key, *ops.rope_angles(np.array([key_position]), ops.rope_frequencies(config)))
        return float((q * k).sum())

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_llama3_scaling_keeps_quick_pairs_and_slows_slow_ones():
    plain = make_config(head_dim=64, rope_base=500_000.0)
    scaled = make_config(head_dim=64, rope_base=500_000.0, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192))
    ratio = ops.rope_frequencies(scaled) / ops.rope_frequencies(plain)
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(1 / 8)
    assert np.all(np.diff(ratio) <= 1e-12) and np.any((ratio < 0.99) & (ratio > 0.13))


def test_rms_norm_by_hand():
    np.testing.assert_allclose(
        ops.rms_norm(np.array([[3, 4]], np.float32), np.array([1, 2], np.float32), 0.0),
        [[3 / 12.5**0.5, 8 / 12.5**0.5]],
        rtol=1e-6,
    )


def test_swiglu_by_hand_and_far_out():
    gate, up = np.array([[0, 1, -200]], np.float32), np.array([[5, 2, 3]], np.float32)
    np.testing.assert_allclose(ops.swiglu(gate, up), [[0, 2 / (1 + np.exp(-1)), 0]], atol=1e-6)


def test_linear_of_one_row_equals_linear_of_many():
    x, weight, bias = random(5, 29), random(37, 29), random(37)
    rows = np.concatenate([ops.linear(x[row : row + 1], weight, bias) for row in range(5)])
    np.testing.assert_allclose(rows, ops.linear(x, weight, bias), atol=1e-5)


def test_float32_stays_float32():
    config = make_config()
    cos, sin = ops.rope_angles(np.arange(5), ops.rope_frequencies(config))
    x = random(5, 6, 10)
    for result in (
        ops.rope(x, cos, sin),
        ops.attention(x, x[:, :2], x[:, :2]),
        ops.rms_norm(x, np.ones(10, np.float32), 1e-5),
        ops.swiglu(x[0], x[1]),
        ops.softmax(x),
        ops.linear(x[0], random(3, 10)),
    ):
        assert result.dtype == np.float32


def test_the_adjacent_pairing_is_another_function():
    config = make_config(head_dim=4)
    x = np.array([[[1, 0, 0, 0]]], np.float32)
    with faults.swapped_rope_pairing():
        rotated = ops.rope(x, *ops.rope_angles(np.array([1]), ops.rope_frequencies(config)))
    np.testing.assert_allclose(rotated[0, 0], [0.5403, 0.8415, 0, 0], atol=5e-5)


def test_pytorch_aligns_its_causal_mask_with_the_first_key():
    torch = pytest.importorskip("torch")
    query, keys, values = torch.zeros(1, 1, 5), torch.zeros(1, 5, 5), torch.eye(5)[None]
    mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    assert mixed[0, 0].tolist() == [1, 0, 0, 0, 0]  # key 0 only: why a twin of `attention` must pass a mask of its own
