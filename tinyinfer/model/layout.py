"""How weights lie in memory: all in one block, and those that multiply the same input one below another.

Such a run of rows is one taller matrix, so that one product does the work of two or three, at no cost in memory. And a
block this large gets the large pages of the operating system, whose addresses a processor finds faster.
"""

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig, layer_shapes

STACKED = (("query", "key", "value"), ("gate", "up"))
_ALIGNED = 16  # numbers: 64 bytes, a line of the processor's cache


def layer_parts(config: ModelConfig, fused: bool) -> dict[str, tuple[str, ...]]:
    """What a layer is made of: each name with the weights of `layer_shapes` stacked under it, mostly itself alone.

    With `fused` the weights of `STACKED` stand together, as `query+key+value` and `gate+up`, and their biases too.
    """
    parts = {name: (name,) for name in layer_shapes(config)}
    for names in STACKED if fused else ():
        for suffix in ("", "_bias"):
            members = tuple(name + suffix for name in names)
            if members[0] in parts:
                parts = {name: own for name, own in parts.items() if name not in members}
                parts["+".join(names) + suffix] = members
    return parts


class PackedWeights(dict[str, np.ndarray]):
    """Weights as views of one block. `stacked` holds those that stand one below another, by their joined names."""

    def __init__(self) -> None:
        super().__init__()
        self.stacked: dict[str, np.ndarray] = {}


def pack_weights(config: ModelConfig, weights: dict[str, np.ndarray]) -> PackedWeights:
    """The same float32 weights in one block. Each is taken out of `weights` when it is copied, so none is held twice.

    Raises `BadInput` when there is no room for the block.
    """
    runs: dict[str, tuple[str, ...]] = {
        name: (name,) for name in ("embedding", "final_norm", "head") if name in weights
    }
    for layer in range(config.layers):
        for name, members in layer_parts(config, fused=True).items():
            runs[f"layers.{layer}.{name}"] = tuple(f"layers.{layer}.{member}" for member in members)
    sizes = {name: sum(weights[member].size for member in members) for name, members in runs.items()}
    numbers = sum(map(_aligned, sizes.values()))
    try:
        block = np.empty(numbers + _ALIGNED, np.float32)
    except MemoryError:
        raise BadInput(f"{config.name} needs {numbers * 4 / 1e9:,.1f} GB for its weights; there is no room") from None
    packed, start = PackedWeights(), -block.ctypes.data // 4 % _ALIGNED
    for name, members in runs.items():
        tall = block[start : start + sizes[name]].reshape(-1, *weights[members[0]].shape[1:])
        start += _aligned(sizes[name])
        row = 0
        for member in members:
            array = weights.pop(member)
            packed[member] = tall[row : row + len(array)]
            packed[member][:] = array
            row += len(array)
        if len(members) > 1:
            packed.stacked[name] = tall
    return packed


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
