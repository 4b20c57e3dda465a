"""The wiring of a Llama-family decoder. It holds no formula: those come from the ops it is given."""

from types import ModuleType
from typing import Any

import numpy as np

from tinyinfer.model.cache import Cache
from tinyinfer.model.config import ModelConfig, layer_shapes


class Llama:
    """A decoder over a flat list of new tokens. There is no batch axis: sequences meet only in the linear layers."""

    def __init__(self, config: ModelConfig, weights: dict[str, np.ndarray], ops: ModuleType):
        self.config, self.ops = config, ops
        self.embedding = ops.from_numpy(weights["embedding"])
        self.final_norm = ops.from_numpy(weights["final_norm"])
        self.head = self.embedding if config.tied_head else ops.from_numpy(weights["head"])
        self.layers = [
            {name: ops.from_numpy(weights[f"layers.{layer}.{name}"]) for name in layer_shapes(config)}
            for layer in range(config.layers)
        ]

    def forward(self, token_ids: np.ndarray, cache: Cache) -> Any:
        """Run `new` tokens through every layer, storing their K and V; hidden states of shape (new, model_dim)."""
        ops, config = self.ops, self.config
        new = len(token_ids)
        cos, sin = ops.rope_angles(cache.positions(new), config)
        x = ops.embed(ops.from_numpy(token_ids), self.embedding)
        for layer, w in enumerate(self.layers):
            normed = ops.rms_norm(x, w["attention_norm"], config.rms_eps)
            queries = ops.linear(normed, w["query"], w.get("query_bias")).reshape(new, config.heads, config.head_dim)
            keys = ops.linear(normed, w["key"], w.get("key_bias")).reshape(new, config.kv_heads, config.head_dim)
            values = ops.linear(normed, w["value"], w.get("value_bias")).reshape(new, config.kv_heads, config.head_dim)
            if config.qk_norm:
                queries = ops.rms_norm(queries, w["query_norm"], config.rms_eps)
                keys = ops.rms_norm(keys, w["key_norm"], config.rms_eps)
            mixed = cache.attend(layer, ops.rope(queries, cos, sin), ops.rope(keys, cos, sin), values)
            x = x + ops.linear(mixed.reshape(new, -1), w["output"], w.get("output_bias"))

            normed = ops.rms_norm(x, w["ffn_norm"], config.rms_eps)
            x = x + ops.linear(ops.swiglu(ops.linear(normed, w["gate"]), ops.linear(normed, w["up"])), w["down"])
        cache.commit(new)
        return ops.rms_norm(x, self.final_norm, config.rms_eps)

    def logits(self, hidden: Any) -> np.ndarray:
        """Scores over the vocabulary for the given hidden rows only: float32 of shape (rows, vocab)."""
        return self.ops.to_numpy(self.ops.linear(hidden, self.head))
