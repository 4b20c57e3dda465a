"""Weights of the right shape and no meaning: a machine can be measured on a model that was never downloaded."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tinyinfer.model.config import ModelConfig, weight_shapes


class RandomWeights(Mapping[str, Any]):
    """The weights of `config`, each made by `ops` where it computes, at the moment that it is asked for.

    None is kept here, so a large model needs its memory once. The same name gives the same numbers.
    """

    def __init__(self, config: ModelConfig, ops: Any):
        self.shapes, self.ops = weight_shapes(config), ops
        self.seeds = {name: seed for seed, name in enumerate(self.shapes)}

    def __getitem__(self, name: str) -> Any:
        shape = self.shapes[name]
        # The spread keeps hidden states near 1, so nothing overflows in 16 bits; a norm's scale is near 1 itself.
        spread = 0.1 if len(shape) == 1 else 1 / math.sqrt(shape[-1])
        numbers = self.ops.normal(shape, spread, self.seeds[name])
        return numbers + 1 if name.endswith("norm") else numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
