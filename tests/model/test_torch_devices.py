"""The CUDA path without a GPU: fake tensors carry a device and a shape but no numbers, and refuse to mix devices."""

import numpy as np
import pytest
import torch
from random_models import make_config, make_weights
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from tinyinfer.model import torch_ops
from tinyinfer.model.batch_cache import BatchKVCache, DecodePass, PrefillPass
from tinyinfer.model.cache import KVCache
from tinyinfer.model.llama import Llama


class Indexing(TorchFunctionMode):
    """Square brackets as the operations that they stand for: done directly, they ask for a CUDA driver."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.Tensor.__getitem__:
            view, indices = self.look(*arguments)
            return torch.ops.aten.index(view, indices) if indices else view
        if function is torch.Tensor.__setitem__:
            *tensor_and_key, value = arguments
            view, indices = self.look(*tensor_and_key)
            return torch.ops.aten.index_put_(view, indices, value) if indices else torch.ops.aten.copy_(view, value)
        return function(*arguments, **(options or {}))

    def look(self, tensor, key):
        """What the numbers, slices and None of a key select, and the tensors that still index it."""
        axis, indices = 0, []
        for part in key if isinstance(key, tuple) else (key,):
            if part is None:
                tensor = torch.ops.aten.unsqueeze(tensor, axis)
            elif isinstance(part, (int, np.integer)):
                tensor = torch.ops.aten.select(tensor, axis, int(part))
                continue
            elif isinstance(part, slice):
                tensor = torch.ops.aten.slice(tensor, axis, part.start, part.stop)
            else:
                indices += [None] * (axis - len(indices)) + [torch.as_tensor(part)]
            axis += 1
        return tensor, indices


@pytest.fixture
def pretend_cuda(monkeypatch):
    """Under `FakeTensorMode` a tensor may be placed on a CUDA device that is not there."""
    monkeypatch.setattr(torch_ops, "find_device", lambda name: torch.device(name, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with FakeTensorMode(allow_non_fake_inputs=False), Indexing():
        yield


def make_decoder(**changes):
    config = make_config(**changes)
    return Llama(config, make_weights(config), torch_ops.on("cuda", "bfloat16"), fused=True)


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True}, {"qk_norm": True}, {"tied_head": True}], ids=str)
def test_prefill_chunk_and_decode_stay_on_the_device(pretend_cuda, changes):
    decoder = make_decoder(**changes)
    cache = KVCache(decoder.config, 13, decoder.ops)
    for token_ids in (np.arange(5), np.arange(3), np.array([7])):
        hidden = decoder.forward(token_ids, cache)
        scores = decoder.scores(hidden[-1:])
        assert (scores.device.type, scores.dtype, scores.shape) == ("cuda", torch.bfloat16, (1, decoder.config.vocab))
    assert cache.length == 9
    assert cache.keys.device.type == cache.values.device.type == "cuda"


def test_a_batch_stays_on_the_device(pretend_cuda):
    decoder = make_decoder()
    cache = BatchKVCache(decoder.config, 13, 3, decoder.ops)
    assert decoder.forward(np.arange(9), PrefillPass(cache, [5, 1, 3])).device.type == "cuda"
    scores = decoder.step(np.array([3, 5, 7]), DecodePass(cache, 6))
    assert (scores.device.type, scores.shape) == ("cuda", (3, decoder.config.vocab))


@pytest.mark.parametrize("stray", ["final_norm", "embedding", "frequencies"])
def test_a_tensor_left_on_the_cpu_is_caught(pretend_cuda, stray):
    decoder = make_decoder()
    setattr(decoder, stray, getattr(decoder, stray).to("cpu"))
    with pytest.raises(RuntimeError, match="device"):
        decoder.forward(np.arange(5), KVCache(decoder.config, 13, decoder.ops))


def test_a_cache_left_on_the_cpu_is_caught(pretend_cuda):
    decoder = make_decoder()
    cache = KVCache(decoder.config, 13, decoder.ops)
    cache.keys = cache.keys.to("cpu")
    with pytest.raises(RuntimeError, match="device"):
        decoder.forward(np.arange(5), cache)
