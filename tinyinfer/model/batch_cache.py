"""Keys and values of several sequences at once, and the two kinds of pass that fill them.

A batch has no padding: a prefill is one flat list of every prompt's tokens, and each token keeps its true position.
What a batch shares is the weights, which are read once for all; keys and values it does not share.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.cache import allocate
from tinyinfer.model.config import ModelConfig


class BatchKVCache:
    """Keys and values of `batch` sequences: for each layer two blocks of (batch, capacity, kv_heads, head_dim).

    `lengths[b]` counts the rows of sequence b that hold tokens. The host knows them without asking the device. Every
    layer has blocks of its own: a compiler that sees one row written into a part of a larger block copies all of it.
    """

    def __init__(self, config: ModelConfig, capacity: int, batch: int, ops: Any):
        self.ops = ops
        self.capacity = capacity
        self.lengths = np.zeros(batch, np.int64)
        shape = (batch, capacity, config.kv_heads, config.head_dim)
        self.keys = [allocate(shape, ops) for _ in range(config.layers)]
        self.values = [allocate(shape, ops) for _ in range(config.layers)]

    def require(self, new: Sequence[int]) -> None:
        """Raise `BadInput`, before anything is written, when `new[b]` more rows of a sequence do not fit."""
        for sequence, (length, more) in enumerate(zip(self.lengths, new, strict=True)):
            if length + more > self.capacity:
                raise BadInput(
                    f"sequence {sequence} of the batch holds {length} of {self.capacity} tokens; {more} more would "
                    f"need {length + more} slots"
                )


class PrefillPass:
    """A pass over many tokens: `new[b]` of sequence b, one sequence after another. To `Llama.forward` it is a cache."""

    def __init__(self, cache: BatchKVCache, new: Sequence[int]):
        cache.require(new)
        self.cache, self.new = cache, np.array(new)
        self.ends = np.cumsum(new)
        own = [np.arange(length, length + more) for length, more in zip(cache.lengths, new, strict=True)]
        self.slots = cache.ops.from_numpy(np.concatenate(own))
        self.sequences = cache.ops.from_numpy(np.repeat(np.arange(len(new)), new))

    def positions(self, num_new: int) -> Any:
        """Each token's position in its own sequence."""
        return self.slots

    def attend(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Store every new row in its sequence, then let each sequence attend to its own rows."""
        cache = self.cache
        all_keys, all_values = cache.keys[layer], cache.values[layer]
        all_keys[self.sequences, self.slots] = keys
        all_values[self.sequences, self.slots] = values
        mixed = []
        for sequence, (end, more) in enumerate(zip(self.ends, self.new, strict=True)):
            rows = cache.lengths[sequence] + more
            own = queries[end - more : end]
            mixed.append(cache.ops.attention(own, all_keys[sequence, :rows], all_values[sequence, :rows]))
        return cache.ops.stack_rows(mixed)

    def commit(self, num_new: int) -> None:
        """Count the new rows as past."""
        self.cache.lengths += self.new


class DecodePass:
    """A pass over one token of each sequence, which attends at most the first `rows` of its sequence's rows.

    Nothing in it depends on a number that only the host knows, and no shape changes from one step to the next, so a
    compiled or captured step can be run again and again: `lengths` is an array where the backend computes, moved on by
    the pass itself. The host's own count is moved by whoever runs the pass.
    """

    def __init__(self, cache: BatchKVCache, rows: int):
        self.ops, self.rows = cache.ops, rows
        self.keys, self.values = cache.keys, cache.values
        self.lengths = cache.ops.from_numpy(cache.lengths.copy())  # a copy: the host's count moves by itself
        self.sequences = cache.ops.from_numpy(np.arange(len(cache.lengths)))

    def positions(self, num_new: int) -> Any:
        """The next free row of each sequence."""
        return self.lengths

    def attend(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Store one row in each sequence, then attend to its past and itself; the rest is masked."""
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[self.sequences, self.lengths] = keys
        all_values[self.sequences, self.lengths] = values
        return self.ops.attention_step(queries, all_keys[:, : self.rows], all_values[:, : self.rows], self.lengths + 1)

    def commit(self, num_new: int) -> None:
        """Count the new rows as past."""
        self.lengths += 1
