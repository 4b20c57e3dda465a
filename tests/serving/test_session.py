"""One request: what prefill and decode steps compute, hold and refuse."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from tinyinfer import BadInput
from tinyinfer.model.llama import Llama
from tinyinfer.serving.session import Session

TEXT = "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"


@pytest.fixture
def ids(tang):
    return tang.tokenizer.encode(TEXT)


def assert_close(actual, expected):
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def stored(session):
    """Copies of the whole blocks of K and of V, free rows included."""
    cache = session.cache
    return tuple(cache.ops.to_numpy(block).copy() for block in (cache.keys, cache.values))


def test_logits_come_from_the_last_row(tang, ids):
    logits = tang.start(capacity=5).prefill(ids[:5])
    naive = tang.logits(ids[:5])
    assert logits.shape == (tang.config.vocab,)
    assert_close(logits, naive[-1])
    assert np.abs(naive[-1] - naive[0]).max() > 0.1  # the first row would be another answer


def test_every_decode_step_gives_the_logits_of_the_whole_text(tang, ids):
    naive = tang.logits(ids)
    session = tang.start(capacity=len(ids))
    assert_close(session.prefill(ids[:4]), naive[3])
    for position in range(4, len(ids)):
        assert_close(session.decode_step(ids[position]), naive[position])
    assert session.cache.length == len(ids)


@pytest.mark.parametrize("cuts", [[1], [7], [3, 5, 16], [23], list(range(1, 24))])
def test_a_prompt_in_chunks_is_the_prompt_as_a_whole(tang, ids, cuts):
    whole, chunked = tang.start(capacity=24), tang.start(capacity=24)
    expected = whole.prefill(ids)
    for chunk in np.split(np.array(ids), cuts):
        logits = chunked.prefill(chunk.tolist())
    assert_close(logits, expected)
    for chunked_rows, whole_rows in zip(stored(chunked), stored(whole), strict=True):
        assert_close(chunked_rows, whole_rows)


def test_a_chunk_may_follow_decode_steps(tang, ids):
    session = tang.start(capacity=13)
    session.prefill(ids[:5])
    session.decode_step(ids[5])
    session.decode_step(ids[6])
    assert_close(session.prefill(ids[7:13]), tang.logits(ids[:13])[-1])


def test_a_request_that_does_not_fit_is_refused_before_any_slot_is_written(tang, ids):
    session = tang.start(capacity=16)
    session.prefill(ids[:10])
    for token_id in ids[10:16]:  # 10 prompt tokens and 7 new ones: the last of them is never fed
        logits = session.decode_step(token_id)
    assert session.cache.length == 16
    keys, values = stored(session)
    with pytest.raises(BadInput, match="holds 16 of 16 tokens; 1 more would need 17 slots"):
        session.decode_step(ids[16])  # the eighth
    with pytest.raises(BadInput, match="10 more would need 26 slots"):
        session.prefill(ids[:10])
    assert session.cache.length == 16
    np.testing.assert_array_equal(stored(session), (keys, values))
    assert_close(logits, tang.logits(ids[:16])[-1])


def test_a_prompt_longer_than_the_cache_is_refused_and_the_session_goes_on(tang, ids):
    session = tang.start(capacity=7)
    with pytest.raises(BadInput, match="8 more would need 8 slots"):
        session.prefill(ids[:8])
    assert session.cache.length == 0
    assert not session.cache.keys.any()
    assert_close(session.prefill(ids[:7]), tang.logits(ids[:7])[-1])


@pytest.mark.parametrize("bad", [[], [-1], [2502], [2**63], [True], [3.0], ["白"], [None], [3, 5, 10**6]])
def test_token_ids_outside_the_vocabulary_are_refused_and_change_nothing(tang, ids, bad):
    session = tang.start(capacity=16)
    session.prefill(ids[:5])
    with pytest.raises(BadInput, match=r"empty|token id"):
        session.prefill(bad)
    if len(bad) == 1:
        with pytest.raises(BadInput, match="token id"):
            session.decode_step(bad[0])
    assert session.cache.length == 5
    assert_close(session.decode_step(ids[5]), tang.logits(ids[:6])[-1])


def test_numpy_integers_are_token_ids_too(tang, ids):
    expected = tang.start(capacity=5).prefill(ids[:5])
    np.testing.assert_array_equal(tang.start(capacity=5).prefill(np.array(ids[:5], np.int32)), expected)


@pytest.mark.parametrize("capacity", [0, -3, 257, 2**62])
def test_a_capacity_that_no_request_can_have_is_refused(tang, capacity):
    with pytest.raises(BadInput, match=f"capacity is {capacity}"):
        tang.start(capacity=capacity)


@pytest.mark.parametrize("capacity", [2.5, "16", True, None])
def test_a_capacity_that_is_no_whole_number_is_refused(tang, capacity):
    with pytest.raises(BadInput, match=f"capacity is {capacity!r}"):
        tang.start(capacity=capacity)


def test_a_window_shorter_than_the_capacity_is_refused(tang):
    decoder = Llama(replace(tang.config, sliding_window=11), tang.weights, tang.decoder.ops)
    assert Session(decoder, 11).cache.capacity == 11
    with pytest.raises(BadInput, match="sliding_window is 11 and capacity 12"):
        Session(decoder, 12)


def test_a_fork_goes_on_from_a_common_beginning(tang, ids):
    first = tang.start(capacity=16)
    first.prefill(ids[:13])
    before = stored(first)
    fork = first.fork(length=7, capacity=11)
    assert (fork.cache.length, fork.cache.capacity) == (7, 11)
    other = [ids[20], ids[3], ids[11]]
    assert_close(fork.prefill(other), tang.logits(ids[:7] + other)[-1])
    np.testing.assert_array_equal(stored(first), before)  # nothing is shared
    assert_close(first.decode_step(ids[13]), tang.logits(ids[:14])[-1])


def test_a_fork_longer_than_its_source_or_its_capacity_is_refused(tang, ids):
    first = tang.start(capacity=16)
    first.prefill(ids[:5])
    with pytest.raises(BadInput, match="length is 6; the source holds"):
        first.fork(length=6, capacity=16)
    with pytest.raises(BadInput, match="5 slots"):
        first.fork(length=5, capacity=4)


def test_two_sessions_of_one_model_do_not_meet(tang, ids):
    one, two = tang.start(capacity=16), tang.start(capacity=16)
    one.prefill(ids[:5])
    two.prefill(ids[7:16])
    assert_close(one.decode_step(ids[5]), tang.logits(ids[:6])[-1])
    assert_close(two.decode_step(ids[16]), tang.logits(ids[7:17])[-1])


def test_prefill_never_makes_logits_of_every_row(smollm2, monkeypatch):
    new, vocab = 101, smollm2.config.vocab
    asked = []
    right = smollm2.decoder.scores
    monkeypatch.setattr(smollm2.decoder, "scores", lambda hidden: asked.append(len(hidden)) or right(hidden))
    session = smollm2.start(capacity=new)
    tracemalloc.start()
    try:
        session.prefill(list(range(100, 100 + new)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert asked == [1]
    assert peak < new * vocab * 4 / 2, peak  # what Python itself allocated: NumPy's arrays, not PyTorch's
