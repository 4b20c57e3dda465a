"""The wiring of a Llama-family decoder. It holds no formula: those come from the ops it is given."""

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tinyinfer.model.cache import Cache
from tinyinfer.model.config import ModelConfig, layer_shapes
from tinyinfer.model.layout import layer_parts


class Llama:
    """A decoder over a flat list of new tokens. There is no batch axis: sequences meet only in the linear layers.

    `weights` maps the names of `weight_shapes` to arrays, best packed (`layout`); `ops` is one of the
    twins (`numpy_ops`, or what `torch_ops.on` returns). With `fused`, weights that multiply the same input are one
    product: fewer, larger pieces of work, the same answer.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Any], ops: Any, fused: bool = True):
        self.config, self.ops = config, ops
        self.embedding = ops.from_numpy(weights["embedding"])
        self.final_norm = ops.from_numpy(weights["final_norm"])
        self.head = self.embedding if config.tied_head else ops.from_numpy(weights["head"])
        parts = layer_parts(config, fused)
        self.layers = [
            {name: self._fetch(weights, layer, name, members) for name, members in parts.items()}
            for layer in range(config.layers)
        ]
        self.frequencies = ops.rope_frequencies(config)

    def forward(self, token_ids: Any, cache: Cache) -> Any:
        """Run `new` tokens through every layer, storing their K and V; hidden states of shape (new, model_dim)."""
        ops, config = self.ops, self.config
        new = len(token_ids)
        cos, sin = ops.rope_angles(ops.from_numpy(cache.positions(new)), self.frequencies)
        x = ops.embed(ops.from_numpy(token_ids), self.embedding)
        for layer, w in enumerate(self.layers):
            normed = ops.rms_norm(x, w["attention_norm"], config.rms_eps)
            queries, keys, values = self.project(normed, w, "query", "key", "value")
            queries = queries.reshape(new, config.heads, config.head_dim)
            keys = keys.reshape(new, config.kv_heads, config.head_dim)
            values = values.reshape(new, config.kv_heads, config.head_dim)
            if config.qk_norm:
                queries = ops.rms_norm(queries, w["query_norm"], config.rms_eps)
                keys = ops.rms_norm(keys, w["key_norm"], config.rms_eps)
            mixed = cache.attend(layer, ops.rope(queries, cos, sin), ops.rope(keys, cos, sin), values)
            x = x + ops.linear(mixed.reshape(new, -1), w["output"], w.get("output_bias"))

            normed = ops.rms_norm(x, w["ffn_norm"], config.rms_eps)
            gate, up = self.project(normed, w, "gate", "up")
            x = x + ops.linear(ops.swiglu(gate, up), w["down"])
        cache.commit(new)
        return ops.rms_norm(x, self.final_norm, config.rms_eps)

    def _fetch(self, weights: Mapping[str, Any], layer: int, name: str, members: tuple[str, ...]) -> Any:
        """One weight of a layer where the backend computes; stacked here, unless it comes stacked."""
        stacked = getattr(weights, "stacked", {}).get(f"layers.{layer}.{name}")
        if stacked is not None:
            return self.ops.from_numpy(stacked)
        own = [self.ops.from_numpy(weights[f"layers.{layer}.{member}"]) for member in members]
        return own[0] if len(own) == 1 else self.ops.stack_rows(own)

    def project(self, x: Any, w: dict[str, Any], *names: str) -> list[Any]:
        """x W^T for each weight named: one product each, or one for all where their weights were stacked."""
        stacked = "+".join(names)
        if stacked not in w:
            return [self.ops.linear(x, w[name], w.get(f"{name}_bias")) for name in names]
        joint = self.ops.linear(x, w[stacked], w.get(f"{stacked}_bias"))
        shapes = layer_shapes(self.config)
        edges = accumulate((shapes[name][0] for name in names), initial=0)
        return [joint[:, start:end] for start, end in pairwise(edges)]

    def scores(self, hidden: Any) -> Any:
        """Scores over the vocabulary for the given hidden rows only, (rows, vocab), where the backend computes."""
        return self.ops.linear(hidden, self.head)

    def step(self, token_ids: Any, cache: Cache) -> Any:
        """A whole decode step: one token per sequence in, (batch, vocab) scores out, all where the backend computes."""
        return self.scores(self.forward(token_ids, cache))

    def logits(self, hidden: Any) -> np.ndarray:
        """The scores brought back: NumPy float32 of shape (rows, vocab)."""
        return self.ops.to_numpy(self.scores(hidden))
