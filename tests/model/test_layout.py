"""Packed weights: the same numbers in one block, stacked where one product can do the work of several."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from random_models import make_config, make_weights

from tinyinfer.errors import BadInput
from tinyinfer.model import numpy_ops
from tinyinfer.model.config import layer_shapes, weight_shapes
from tinyinfer.model.layout import layer_parts, pack_weights
from tinyinfer.model.llama import Llama

CONFIGS = {
    "plain": make_config(),
    "untied": make_config(tied_head=False),
    "tied": make_config(tied_head=True),
    "biases": make_config(qkv_bias=True, output_bias=True, qk_norm=True),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_every_weight_is_kept_under_its_name(config):
    weights, given = make_weights(config), make_weights(config)
    packed = pack_weights(config, given)
    assert packed.keys() == weight_shapes(config).keys()
    assert given == {}
    for name, array in weights.items():
        np.testing.assert_array_equal(packed[name], array)


def test_all_are_views_of_one_block_and_none_overlap(config):
    packed = pack_weights(config, make_weights(config))
    assert len({id(array.base) for array in packed.values()}) == 1
    spans = sorted((address(array), address(array) + array.nbytes) for array in packed.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    largest_gap = max(start - end for (_, end), (start, _) in pairwise(spans))
    assert largest_gap < 64


def test_what_is_stacked_shares_memory_with_its_members_and_begins_a_cache_line(config):
    packed = pack_weights(config, make_weights(config))
    per_layer = 3 if config.qkv_bias else 2
    assert len(packed.stacked) == per_layer * config.layers
    for layer in range(config.layers):
        tall = packed.stacked[f"layers.{layer}.query+key+value"]
        members = [packed[f"layers.{layer}.{name}"] for name in ("query", "key", "value")]
        np.testing.assert_array_equal(tall, np.concatenate(members))
        assert all(np.shares_memory(tall, member) for member in members)
        assert tall.flags.c_contiguous and address(tall) % 64 == 0


def test_parts_name_each_weight_of_a_layer_once(config):
    for fused in (False, True):
        members = [member for part in layer_parts(config, fused).values() for member in part]
        assert sorted(members) == sorted(layer_shapes(config))
    assert all(name == members[0] for name, members in layer_parts(config, fused=False).items())
    assert layer_parts(config, fused=True)["gate+up"] == ("gate", "up")


def test_a_decoder_on_packed_weights_copies_none(config):
    packed = pack_weights(config, make_weights(config))
    tracemalloc.start()
    decoder = Llama(config, packed, numpy_ops)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.shares_memory(decoder.layers[1]["gate+up"], packed["layers.1.up"])
    assert most < sum(array.nbytes for array in packed.values()) / 2


def test_stacked_here_or_before_is_the_same_decoder(config):
    weights = make_weights(config)
    before, here = Llama(config, pack_weights(config, dict(weights)), numpy_ops), Llama(config, weights, numpy_ops)
    for one, other in zip(before.layers, here.layers, strict=True):
        assert one.keys() == other.keys() == layer_parts(config, fused=True).keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_no_room_for_the_block_is_said_with_its_size(monkeypatch, config):
    def full(*_):
        raise MemoryError

    weights = make_weights(config)
    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(BadInput, match=r"random needs 0\.0 GB for its weights; there is no room"):
        pack_weights(config, weights)
    assert weights.keys() == weight_shapes(config).keys()
