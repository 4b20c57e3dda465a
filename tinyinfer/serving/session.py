"""One request: its KV cache and the two verbs that fill it, prefill and decode_step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.cache import KVCache
from tinyinfer.model.config import ModelConfig
from tinyinfer.model.llama import Llama


class Session:
    """A sequence in progress. A refused call changes nothing, so the session can go on."""

    def __init__(self, decoder: Llama, capacity: int):
        check_capacity(decoder.config, capacity)
        self.decoder = decoder
        self.cache = KVCache(decoder.config, capacity, decoder.ops)

    def prefill(self, token_ids: Sequence[int]) -> np.ndarray:
        """Read known tokens all at once; logits after the last of them, shape (vocab,).

        Called again it appends a chunk, and the result equals one prefill of everything.
        """
        return self._append(check_token_ids(token_ids, self.decoder.config.vocab))

    def decode_step(self, token_id: int) -> np.ndarray:
        """Read one token, write one row of K and of V per layer; logits of the next token, shape (vocab,)."""
        return self._append(check_token_ids([token_id], self.decoder.config.vocab))

    def fork(self, length: int, capacity: int) -> "Session":
        """A new session that begins with this one's first `length` tokens, their K and V copied, not recomputed."""
        forked = Session(self.decoder, capacity)
        forked.cache.copy_prefix(self.cache, length)
        return forked

    def _append(self, token_ids: np.ndarray) -> np.ndarray:
        with self.decoder.ops.inference_mode():
            hidden: Any = self.decoder.forward(token_ids, self.cache)
            # Only the last row is turned into logits: n rows over a big vocabulary would dwarf the KV cache.
            return self.decoder.logits(hidden[-1:])[0]


def check_capacity(config: ModelConfig, capacity: int) -> None:
    """Raise `BadInput` when no request to this model can have so many cache slots."""
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise BadInput(f"capacity is {capacity!r}; it must be a whole number of at least 1")
    if capacity > config.max_context:
        raise BadInput(f"capacity is {capacity}; model {config.name} reads at most {config.max_context} tokens")
    if config.sliding_window is not None and capacity > config.sliding_window:
        raise BadInput(
            f"sliding_window is {config.sliding_window} and capacity {capacity}; window attention is not built in, "
            f"so at most {config.sliding_window} tokens can be held"
        )


def check_token_ids(token_ids: Sequence[int], vocab: int) -> np.ndarray:
    """The ids as an integer array; `BadInput` when there is none or one lies outside the vocabulary."""
    if len(token_ids) == 0:
        raise BadInput("the prompt is empty; at least one token is needed")
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, (int, np.integer)):
            raise BadInput(f"token id {token_id!r} is not a whole number")
        if not 0 <= token_id < vocab:
            raise BadInput(f"token id {token_id} is outside the vocabulary; allowed are 0 to {vocab - 1}")
    return np.asarray(token_ids, dtype=np.int64)
