"""The hand-off: the rows that cross are those that were computed; else nothing is committed and the reason named."""

from dataclasses import replace

import numpy as np
import pytest
from random_models import make_config, make_weights

from tinyinfer import BadInput
from tinyinfer.model.cache import KVCache
from tinyinfer.model.llama import Llama
from tinyinfer.serving.failures import TransferRefused
from tinyinfer.serving.session import Session
from tinyinfer.serving.transfer import (
    LAYOUT,
    Payload,
    expected_header,
    pack_rows,
    receive_rows,
    rows_checksum,
    verify_payload,
)

HEADS = {"grouped": {"heads": 6, "kv_heads": 2}, "multi-head": {"heads": 6, "kv_heads": 6}}


@pytest.fixture(params=HEADS)
def decoder(request, ops):
    config = make_config(**HEADS[request.param])
    return Llama(config, make_weights(config), ops)


def prefilled(decoder, length=7, capacity=11):
    session = Session(decoder, capacity)
    logits = session.prefill(list(range(1, length + 1)))
    return session, logits


def pack(session, request_id="req_001", attempt=1):
    return pack_rows(session.cache, request_id, attempt, session.decoder.config.name)


def expected_of(decoder, length=7, request_id="req_001", attempt=1):
    return expected_header(decoder.config, request_id, attempt, length)


@pytest.mark.parametrize("length", [1, 2, 7, 11])
def test_transfer_then_decode_is_the_undivided_run_from_token_0_bit_for_bit(decoder, length):
    """One-token prompts and prompts of exactly the capacity are among them."""
    capacity = 11
    whole, whole_logits = prefilled(decoder, length, capacity)
    sender, sent_logits = prefilled(decoder, length, capacity=length)
    np.testing.assert_array_equal(sent_logits, whole_logits)
    receiver = Session(decoder, capacity)
    receive_rows(pack(sender), receiver.cache, expected_of(decoder, length))
    assert receiver.cache.length == length
    for step in range(capacity - length):
        token = 13 + step
        np.testing.assert_array_equal(receiver.decode_step(token), whole.decode_step(token))
    for received, kept in ((receiver.cache.keys, whole.cache.keys), (receiver.cache.values, whole.cache.values)):
        np.testing.assert_array_equal(decoder.ops.to_numpy(received), decoder.ops.to_numpy(kept))
    with pytest.raises(BadInput):
        receiver.decode_step(1)


@pytest.mark.parametrize("length", [1, 7, 11])
def test_only_rows_that_hold_tokens_cross(decoder, length):
    session, _ = prefilled(decoder, length, capacity=11)
    payload = pack(session)
    config = decoder.config
    assert payload.keys.shape == payload.values.shape == (3, length, config.kv_heads, 10)
    assert payload.nbytes == length * config.kv_bytes_per_token(4)
    assert payload.header.length == length
    np.testing.assert_array_equal(payload.keys, decoder.ops.to_numpy(session.cache.keys)[:, :length])
    np.testing.assert_array_equal(payload.values, decoder.ops.to_numpy(session.cache.values)[:, :length])


def test_the_header_says_what_the_arrays_are(decoder):
    session, _ = prefilled(decoder)
    header = pack(session, "req_043", 5).header
    assert (header.request_id, header.attempt, header.model, header.length) == ("req_043", 5, "random", 7)
    assert (header.dtype, header.layout, header.shape) == ("float32", LAYOUT, (3, 7, decoder.config.kv_heads, 10))
    assert len(set(header.key_checksums + header.value_checksums)) == 6
    named = header.checksums_by_layer()
    assert list(named) == ["layer_0", "layer_1", "layer_2"]
    assert int(named["layer_2"]["V"], 16) == header.value_checksums[2]


def flip_bit(block, layer=1, row=3):
    block = block.copy()
    block[layer, row].view(np.uint32)[0, 0] ^= 1  # the least of 32 bits of one number
    return block


FAULTS = {
    "a flipped bit in K": (lambda p: replace(p, keys=flip_bit(p.keys)), "checksum of K in layer 1"),
    "a flipped bit in V": (lambda p: replace(p, values=flip_bit(p.values)), "checksum of V in layer 1"),
    "a sign of zero": (lambda p: replace(p, values=-p.values), "checksum of V in layer 0"),
    "layers in the wrong order": (lambda p: replace(p, keys=p.keys[[1, 0, 2]]), "checksum of K in layer 0"),
    "K and V exchanged": (lambda p: replace(p, keys=p.values, values=p.keys), "checksum of K in layer 0"),
    "rows in the wrong order": (lambda p: replace(p, values=p.values[:, ::-1]), "checksum of V in layer 0"),
    "another dtype": (lambda p: replace(p, keys=p.keys.astype(np.float16)), "K is float16; its header says float32"),
    "another dtype of the same size": (lambda p: replace(p, values=p.values.view(np.int32)), "V is int32"),
    "another byte order": (lambda p: replace(p, keys=p.keys.astype(">f4")), "K is >f4"),
    "a dtype in the header": (lambda p: with_header(p, dtype="float16"), "dtype is 'float16'"),
    "another layout": (lambda p: replace(p, keys=p.keys.swapaxes(1, 2)), "K has shape"),
    "a layout in the header": (
        lambda p: with_header(p, layout="layer, kv_head, token, head_dim"),
        "layout is 'layer, kv",
    ),
    "a short array": (lambda p: replace(p, keys=p.keys[:, :-1]), r"K has shape \(3, 6, "),
    "a long array": (lambda p: replace(p, values=np.repeat(p.values, 2, axis=1)), r"V has shape \(3, 14, "),
    "a row too few everywhere": (lambda p: with_header(p, length=6), "length is 6; expected is 7"),
    "a missing layer": (lambda p: replace(p, values=p.values[:-1]), "V has shape"),
    "a missing checksum": (lambda p: with_header(p, key_checksums=p.header.key_checksums[:-1]), "K has 2 checksums"),
    "a stale request id": (
        lambda p: with_header(p, request_id="req_000"),
        "request_id is 'req_000'; expected is 'req_001'",
    ),
    "a stale attempt": (lambda p: with_header(p, attempt=0), r"attempt is 0 \(stale\); expected is 1"),
    "another model": (lambda p: with_header(p, model="other"), "model is 'other'"),
    "no payload": (lambda p: None, "payload is a NoneType"),
    "a list for an array": (lambda p: replace(p, keys=p.keys.tolist()), "K is list"),
}


def with_header(payload, **changes):
    return replace(payload, header=replace(payload.header, **changes))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named_and_nothing_of_it_is_committed(decoder, fault):
    break_it, reason = FAULTS[fault]
    session, _ = prefilled(decoder)
    broken = break_it(pack(session))
    cache = KVCache(decoder.config, 11, decoder.ops)
    with pytest.raises(TransferRefused, match=reason):
        receive_rows(broken, cache, expected_of(decoder))
    assert cache.length == 0
    assert not decoder.ops.to_numpy(cache.keys).any() and not decoder.ops.to_numpy(cache.values).any()
    receive_rows(pack(session), cache, expected_of(decoder))  # and the cache is still good
    assert cache.length == 7


def test_equal_rows_of_another_layer_or_kind_have_another_checksum():
    rows = np.ones((7, 2, 10), np.float32)
    assert len({rows_checksum(kind, layer, rows) for kind in "KV" for layer in range(5)}) == 10
    assert rows_checksum("K", 3, rows) == rows_checksum("K", 3, rows[::-1][::-1].copy())


@pytest.mark.parametrize("kind", ["keys", "values"])
def test_a_flip_of_any_bit_is_noticed(ops, kind):
    config = make_config(layers=2, kv_heads=1, heads=1, head_dim=2)
    session, _ = prefilled(Llama(config, make_weights(config), ops), length=3)
    payload, expected = pack(session), expected_header(config, "req_001", 1, 3)
    verify_payload(payload, expected)
    block = getattr(payload, kind).copy()
    for bit in range(8 * block.nbytes):
        broken = block.copy()
        broken.view(np.uint8).reshape(-1)[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TransferRefused, match="checksum of"):
            verify_payload(replace(payload, **{kind: broken}), expected)


def test_checksums_are_of_the_cache_and_so_notice_a_wrong_packing(decoder, monkeypatch):
    from tinyinfer.serving import transfer

    right = np.ascontiguousarray
    monkeypatch.setattr(
        transfer.np, "ascontiguousarray", lambda a, *dtype: right(a[::-1] if a.ndim == 4 else a, *dtype)
    )
    payload = pack(prefilled(decoder)[0])
    monkeypatch.undo()
    with pytest.raises(TransferRefused, match="checksum of K in layer 0"):
        verify_payload(payload, expected_of(decoder))


def test_a_cache_that_is_not_empty_or_too_small_takes_nothing(decoder):
    payload = pack(prefilled(decoder)[0])
    used = prefilled(decoder, length=2)[0].cache
    with pytest.raises(TransferRefused, match="already holds 2 tokens"):
        receive_rows(payload, used, expected_of(decoder))
    assert used.length == 2
    small = KVCache(decoder.config, 6, decoder.ops)
    with pytest.raises(BadInput, match="7 more would need 7 slots"):
        receive_rows(payload, small, expected_of(decoder))
    assert small.length == 0


def test_arrays_from_a_store_may_be_read_only(decoder):
    payload = pack(prefilled(decoder)[0])
    for block in (payload.keys, payload.values):
        block.flags.writeable = False
    cache = KVCache(decoder.config, 11, decoder.ops)
    receive_rows(payload, cache, expected_of(decoder))
    assert cache.length == 7


def test_a_cache_in_bfloat16_crosses_as_float32_and_loses_nothing():
    from tinyinfer.model.backend import backend_options

    ops = backend_options("torch", "cpu", "bfloat16")["ops"]
    config = make_config()
    decoder = Llama(config, make_weights(config), ops)
    session, _ = prefilled(decoder)
    payload = pack(session)
    assert payload.nbytes == 7 * config.kv_bytes_per_token(4) == 2 * session.cache.bytes_used
    cache = KVCache(config, 11, ops)
    receive_rows(payload, cache, expected_of(decoder))
    np.testing.assert_array_equal(ops.to_numpy(cache.keys), ops.to_numpy(session.cache.keys))
    np.testing.assert_array_equal(ops.to_numpy(cache.values), ops.to_numpy(session.cache.values))


def test_a_payload_is_not_its_arrays_alone():
    with pytest.raises(TransferRefused, match="payload is a tuple"):
        verify_payload((1, 2), expected_header(make_config(), "req_001", 1, 7))
    with pytest.raises(TransferRefused, match="payload is a Payload"):
        verify_payload(Payload(None, np.zeros(1), np.zeros(1)), expected_header(make_config(), "req_001", 1, 7))
