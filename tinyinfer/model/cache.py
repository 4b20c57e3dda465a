"""Where keys and values of past tokens are kept. A cache alone knows which rows belong together.

A cache answers three questions of a forward pass over `num_new` tokens:

- `positions(num_new)`: at which positions do the new tokens stand?
- `attend(layer, queries, keys, values)`: what does each new token gather from its own past and itself?
- `commit(num_new)`: the pass is over; the new rows now belong to the past.

Anything with these three methods can stand in: the model never sees what is behind them.
"""

import math
from typing import Any, Protocol

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig


class Cache(Protocol):
    """What `Llama.forward` asks of a cache."""

    def positions(self, num_new: int) -> Any: ...

    def attend(self, layer: int, queries: Any, keys: Any, values: Any) -> Any: ...

    def commit(self, num_new: int) -> None: ...


class KVCache:
    """Keys and values of one sequence, in two blocks allocated once: (layers, capacity, kv_heads, head_dim).

    `length` counts the rows that hold tokens. It moves once per forward pass, in `commit`, not once per layer:
    every layer of a pass must see the same past. Rows at and beyond `length` are free to be overwritten, so a pass
    that fails half-way leaves the cache as it was.
    """

    def __init__(self, config: ModelConfig, capacity: int, ops: Any):
        if capacity < 1:
            raise BadInput(f"capacity is {capacity}; a cache needs at least 1 slot")
        self.ops = ops
        self.capacity = capacity
        self.length = 0
        shape = (config.layers, capacity, config.kv_heads, config.head_dim)
        self.keys, self.values = allocate(shape, ops), allocate(shape, ops)

    def require(self, num_new: int) -> None:
        """Raise `BadInput`, before any row is written, if `num_new` do not fit."""
        if self.length + num_new > self.capacity:
            raise BadInput(
                f"the cache holds {self.length} of {self.capacity} tokens; "
                f"{num_new} more would need {self.length + num_new} slots"
            )

    def positions(self, num_new: int) -> np.ndarray:
        """Positions of the next `num_new` tokens, counted from 0."""
        self.require(num_new)
        return np.arange(self.length, self.length + num_new)

    def attend(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Store the new K and V rows of this layer, then attend over all rows seen.

        Shapes as in `ops.attention`.
        """
        seen = self.length + len(keys)
        own_keys, own_values = self.keys[layer, :seen], self.values[layer, :seen]
        own_keys[self.length :] = keys
        own_values[self.length :] = values
        return self.ops.attention(queries, own_keys, own_values)

    def commit(self, num_new: int) -> None:
        """Count the new rows as past."""
        self.length += num_new

    def copy_prefix(self, source: "KVCache", length: int) -> None:
        """Take the first `length` rows of another cache of the same model.

        The idea of a prompt cache. Right only for the very same tokens at the very same
        positions, since every deeper K and V depends on them all.
        """
        if not 0 <= length <= source.length:
            raise BadInput(f"length is {length}; the source holds {source.length} rows")
        if self.length:
            raise BadInput(f"a prefix needs an empty cache; it has {self.length} rows")
        self.require(length)
        self.keys[:, :length] = source.keys[:, :length]
        self.values[:, :length] = source.values[:, :length]
        self.length = length

    @property
    def bytes_used(self) -> int:
        """Bytes of the rows that hold tokens."""
        return self.keys[:, : self.length].nbytes + self.values[:, : self.length].nbytes

    def as_nested(self) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        """The filled rows as `["layer_0"]["head_0"]["K" | "V"]`, each [seq_len, head_dim]: copies, for people."""
        layers, _, kv_heads, _ = self.keys.shape

        def rows(block: Any, layer: int, head: int) -> np.ndarray:
            return self.ops.to_numpy(block[layer, : self.length, head]).copy()

        return {
            f"layer_{layer}": {
                f"head_{head}": {"K": rows(self.keys, layer, head), "V": rows(self.values, layer, head)}
                for head in range(kv_heads)
            }
            for layer in range(layers)
        }


def allocate(shape: tuple[int, ...], ops: Any) -> Any:
    """A block of zeros for keys or for values; `BadInput` when there is no room for it."""
    try:
        return ops.zeros(shape)
    except MemoryError:
        size = math.prod(shape) * ops.zeros((1,)).itemsize
        raise BadInput(
            f"capacity {shape[-3]} needs {size / 1e9:,.1f} GB for keys of shape {shape} and as much for values; "
            "this machine has no room for it"
        ) from None
