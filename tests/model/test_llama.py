import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import make_config, make_weights

from tinyinfer.model.cache import KVCache
from tinyinfer.model.config import RopeScaling
from tinyinfer.model.llama import Llama
from tinyinfer.model.naive import naive_logits


def assert_close(actual, expected, tolerance=1e-5):
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    gap = np.abs(actual - expected).max()
    assert gap <= tolerance * max(1.0, np.abs(expected).max()), gap


def cached_logits(decoder: Llama, token_ids, chunks):
    """Logits after every token, the prompt cut into `chunks`."""
    cache = KVCache(decoder.config, len(token_ids), decoder.ops)
    rows = [decoder.logits(decoder.forward(np.array(part), cache)) for part in np.split(np.array(token_ids), chunks)]
    return np.concatenate(rows)


@st.composite
def shapes(draw):
    kv_heads = draw(st.integers(1, 3))
    scaling = draw(st.sampled_from([None, RopeScaling(4.0, 1.0, 4.0, 32)]))
    return make_config(
        layers=draw(st.integers(1, 4)),
        model_dim=draw(st.sampled_from([7, 13, 29])),
        kv_heads=kv_heads,
        heads=kv_heads * draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([2, 6, 10])),
        tied_head=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        rope_scaling=scaling,
    )


@settings(max_examples=60)
@given(shapes(), st.integers(0, 2**20), st.integers(1, 23), st.booleans(), st.data())
def test_cached_equals_naive_for_any_shape_and_any_split_into_chunks(ops, config, seed, length, fused, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=length - 1))) if length > 1 else []
    weights = make_weights(config, seed)
    token_ids = np.random.default_rng(seed).integers(config.vocab, size=length).tolist()
    actual = cached_logits(Llama(config, weights, ops, fused), token_ids, cuts)
    assert_close(actual, naive_logits(config, weights, token_ids))


def test_cached_logits_equal_naive_logits_on_trained_weights(tang):
    token_ids = tang.tokenizer.encode("白日依山尽，黄河入海流。欲穷千里目，")
    for cuts in ([], [4], [1, 2, 9], list(range(1, len(token_ids)))):
        assert_close(cached_logits(tang.decoder, token_ids, cuts), tang.logits(token_ids))


def test_an_uncached_call_after_decode_steps_is_that_of_a_fresh_model(tang):
    token_ids = tang.tokenizer.encode("白日依山")
    before = tang.logits(token_ids)
    session = tang.start(capacity=8)
    session.prefill(token_ids)
    for token_id in (5, 6, 7):
        session.decode_step(token_id)
    np.testing.assert_array_equal(tang.logits(token_ids), before)


def test_the_past_influences_the_next_token(tang):
    one, two = (tang.logits(tang.tokenizer.encode(text))[-1] for text in ("白日依山", "春日依山"))
    assert np.abs(one - two).max() > 0.1
