import numpy as np
import pytest
from random_models import make_config, make_weights

from tinyinfer import BadInput
from tinyinfer.model.cache import KVCache
from tinyinfer.model.llama import Llama


class Recorder(KVCache):
    """A cache that writes down what it was asked."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked_positions, self.attended = [], []

    def positions(self, num_new):
        positions = super().positions(num_new)
        self.asked_positions.append(positions.tolist())
        return positions

    def attend(self, layer, queries, keys, values):
        self.attended.append((layer, self.length, self.length + len(keys)))
        return super().attend(layer, queries, keys, values)


@pytest.fixture
def decoder(ops):
    config = make_config(layers=4)
    return Llama(config, make_weights(config), ops)


@pytest.mark.parametrize("prompt", [5, 6, 9])
def test_decode_positions_follow_the_prompt_without_a_gap(decoder, prompt):
    cache = Recorder(decoder.config, 12, decoder.ops)
    decoder.forward(np.arange(prompt), cache)
    for token in (1, 2, 3):
        decoder.forward(np.array([token]), cache)
    assert cache.asked_positions == [list(range(prompt)), [prompt], [prompt + 1], [prompt + 2]]
    assert cache.length == prompt + 3


def test_every_layer_of_a_step_sees_the_same_past(decoder):
    cache = Recorder(decoder.config, 20, decoder.ops)
    decoder.forward(np.arange(7), cache)
    cache.attended.clear()
    decoder.forward(np.array([3]), cache)
    assert cache.attended == [(layer, 7, 8) for layer in range(4)]


def test_old_rows_never_change(decoder):
    cache = KVCache(decoder.config, 12, decoder.ops)
    decoder.forward(np.arange(5), cache)
    keys, values = (decoder.ops.to_numpy(block[:, :5]).copy() for block in (cache.keys, cache.values))
    for token in range(7):
        decoder.forward(np.array([token]), cache)
    np.testing.assert_array_equal(decoder.ops.to_numpy(cache.keys[:, :5]), keys)
    np.testing.assert_array_equal(decoder.ops.to_numpy(cache.values[:, :5]), values)


def test_the_nested_view_names_layers_heads_and_rows(decoder):
    cache = KVCache(decoder.config, 12, decoder.ops)
    decoder.forward(np.arange(5), cache)
    nested = cache.as_nested()
    assert list(nested) == ["layer_0", "layer_1", "layer_2", "layer_3"]
    assert list(nested["layer_0"]) == ["head_0", "head_1"]
    assert {name: rows.shape for name, rows in nested["layer_3"]["head_1"].items()} == {"K": (5, 10), "V": (5, 10)}
    np.testing.assert_array_equal(nested["layer_2"]["head_1"]["V"], decoder.ops.to_numpy(cache.values[2, :5, 1]))
    nested["layer_2"]["head_1"]["V"][:] = 7
    assert not (cache.values == 7).any()


def test_what_does_not_fit_is_refused_with_both_numbers(decoder):
    cache = KVCache(decoder.config, 8, decoder.ops)
    decoder.forward(np.arange(5), cache)
    keys = decoder.ops.to_numpy(cache.keys).copy()
    with pytest.raises(BadInput, match="9 slots"):
        decoder.forward(np.arange(4), cache)
    assert cache.length == 5
    np.testing.assert_array_equal(decoder.ops.to_numpy(cache.keys), keys)
    with pytest.raises(BadInput, match="capacity is 0"):
        KVCache(decoder.config, 0, decoder.ops)


def test_bytes_used_equal_the_formula(decoder):
    cache = KVCache(decoder.config, 12, decoder.ops)
    decoder.forward(np.arange(5), cache)
    assert cache.bytes_used == 5 * decoder.config.kv_bytes_per_token(bytes_per_number=4)


def test_a_prefix_is_copied_only_where_it_is_right(decoder):
    source = KVCache(decoder.config, 12, decoder.ops)
    decoder.forward(np.arange(5), source)
    target = KVCache(decoder.config, 4, decoder.ops)
    with pytest.raises(BadInput, match="length is 6; the source holds"):
        target.copy_prefix(source, 6)
    with pytest.raises(BadInput, match="5 slots"):
        target.copy_prefix(source, 5)
    assert target.length == 0
    target.copy_prefix(source, 3)
    assert (target.keys[:, :3] == source.keys[:, :3]).all()
    with pytest.raises(BadInput, match="empty cache"):
        target.copy_prefix(source, 1)
