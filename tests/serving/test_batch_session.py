"""A batch of requests: each row is the answer that its sequence gets alone, and the weights are read once for all."""

import numpy as np
import pytest

from tinyinfer import BadInput
from tinyinfer.performance.counting import counted

PROMPTS = ["白日依山尽，黄河", "写诗", "春眠不觉晓"]  # 8, 2 and 5 tokens


@pytest.fixture
def prompts(tang):
    return [tang.tokenizer.encode(text) for text in PROMPTS]


def assert_close(actual, expected):
    assert actual.dtype == np.float32 and actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def test_each_row_of_a_batch_equals_its_solo_run(tang, prompts):
    batch, solo = tang.start(capacity=17, batch=3), [tang.start(capacity=17) for _ in prompts]
    assert_close(batch.prefill(prompts), np.stack([s.prefill(p) for s, p in zip(solo, prompts, strict=True)]))
    for token_ids in ([5, 6, 7], [11, 13, 17], [19, 23, 29], [5, 5, 5]):
        expected = np.stack([s.decode_step(t) for s, t in zip(solo, token_ids, strict=True)])
        assert_close(batch.decode_step(token_ids), expected)
    assert batch.cache.lengths.tolist() == [12, 6, 9]


def test_logits_are_those_of_the_last_real_token_of_each_prompt(tang, prompts):
    # Prompts of 3 and 5 in one batch: right padding would answer for the last column (mlcommons/inference 1558).
    both = [prompts[0][:3], prompts[0][:5]]
    logits = tang.start(capacity=5, batch=2).prefill(both)
    assert_close(logits, np.stack([tang.logits(ids)[-1] for ids in both]))
    assert np.abs(logits[0] - logits[1]).max() > 0.1


def test_every_sequence_counts_its_positions_from_zero(tang, prompts, monkeypatch):
    # Left padding without correction would begin the short prompt late (transformers 3021).
    asked = []
    right = tang.decoder.ops.rope_angles

    def rope_angles(positions, frequencies):
        asked.append([int(position) for position in positions])
        return right(positions, frequencies)

    monkeypatch.setattr(tang.decoder.ops, "rope_angles", rope_angles)
    batch = tang.start(capacity=9, batch=2)
    batch.prefill([prompts[0][:2], prompts[0][:5]])
    batch.decode_step([3, 5])
    assert asked == [[0, 1, 0, 1, 2, 3, 4], [2, 5]]


def test_a_prompt_in_chunks_is_the_prompt_as_a_whole(tang, prompts):
    whole, chunked = tang.start(capacity=9, batch=3), tang.start(capacity=9, batch=3)
    chunked.prefill([ids[:1] for ids in prompts])
    assert_close(chunked.prefill([ids[1:] for ids in prompts]), whole.prefill(prompts))


def test_a_sequence_never_sees_another(tang, prompts):
    one, two = tang.start(capacity=17, batch=2), tang.start(capacity=17, batch=2)
    one.prefill([prompts[0], prompts[1]])
    two.prefill([prompts[0], prompts[2]])
    assert_close(one.decode_step([7, 11])[0], two.decode_step([7, 13])[0])


def test_a_step_of_a_batch_reads_the_weights_once(tang, prompts, request):
    if tang.backend != "numpy":
        pytest.skip("counted by NumPy arrays; on PyTorch the same wiring runs")
    twin, tally = counted(tang)
    products = []
    for batch in (1, 2, 3):
        session = twin.start(17, batch=batch)
        session.prefill(prompts[:batch])
        tally.reset()
        session.decode_step([5] * batch)
        products.append(tally.matrix_products)
    layers = tang.config.layers
    assert products == [6 * layers + 1] * 3  # the same products for every batch, each over its weight once


def test_a_batch_of_one_is_a_session(tang, prompts):
    batch, solo = tang.start(capacity=17, batch=1), tang.start(capacity=17)
    assert_close(batch.prefill(prompts[:1])[0], solo.prefill(prompts[0]))
    assert_close(batch.decode_step([7])[0], solo.decode_step(7))


def test_what_does_not_fit_is_refused_before_a_row_is_written(tang, prompts):
    batch = tang.start(capacity=8, batch=3)
    batch.prefill([ids[:2] for ids in prompts])
    before = [tang.decoder.ops.to_numpy(keys).copy() for keys in batch.cache.keys]
    with pytest.raises(BadInput, match="sequence 0 of the batch holds 2 of 8 tokens; 7 more would need 9 slots"):
        batch.prefill([prompts[0][:7], [5], [5]])
    np.testing.assert_array_equal([tang.decoder.ops.to_numpy(keys) for keys in batch.cache.keys], before)
    batch.prefill([prompts[0][2:], [5], [5]])  # now sequence 0 is full
    with pytest.raises(BadInput, match="1 more would need 9 slots"):
        batch.decode_step([5, 5, 5])
    assert batch.cache.lengths.tolist() == [8, 3, 3]


@pytest.mark.parametrize("batch", [0, -1, 2.0, True, "3"])
def test_a_batch_that_is_no_positive_whole_number_is_refused(tang, batch):
    with pytest.raises(BadInput, match="batch is"):
        tang.start(capacity=8, batch=batch)


def test_as_many_sequences_as_the_batch_has_must_be_given(tang, prompts):
    batch = tang.start(capacity=17, batch=3)
    with pytest.raises(BadInput, match="2 sequences are given; this batch has 3"):
        batch.prefill(prompts[:2])
    batch.prefill(prompts)
    with pytest.raises(BadInput, match="1 sequences are given"):
        batch.decode_step([5])
    with pytest.raises(BadInput, match="the prompt is empty"):
        batch.prefill([[5], [], [7]])
    assert batch.cache.lengths.tolist() == [8, 2, 5]
