"""Several requests that step together: the weights are read once for all of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.batch_cache import BatchKVCache, DecodePass, PrefillPass
from tinyinfer.model.llama import Llama
from tinyinfer.serving.session import check_capacity, check_token_ids


class BatchSession:
    """`batch` sequences in progress, of unequal length. A refused call changes nothing.

    `accelerate` turns the decode step into a faster one of the same function (`torch_step.compiled` or `.captured`).
    Then no shape may change from step to step, so attention reads all `capacity` rows and masks the empty ones.
    """

    def __init__(
        self, decoder: Llama, capacity: int, batch: int, accelerate: Callable[[Callable], Callable] | None = None
    ):
        check_capacity(decoder.config, capacity)
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise BadInput(f"batch is {batch!r}; it must be a whole number of at least 1")
        self.decoder = decoder
        self.cache = BatchKVCache(decoder.config, capacity, batch, decoder.ops)
        self.step = decoder.step if accelerate is None else accelerate(decoder.step)
        self.steady = None if accelerate is None else DecodePass(self.cache, capacity)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Read every sequence's known tokens in one pass; logits after the last of each, shape (batch, vocab).

        Called again it appends a chunk to every sequence.
        """
        token_ids = [check_token_ids(prompt, self.decoder.config.vocab) for prompt in self._one_each(prompts)]
        this_pass = PrefillPass(self.cache, [len(ids) for ids in token_ids])
        with self.decoder.ops.inference_mode():
            hidden: Any = self.decoder.forward(np.concatenate(token_ids), this_pass)
            logits = self.decoder.logits(hidden[this_pass.ends - 1])
        self.set_lengths(self.cache.lengths)
        return logits

    def decode_step(self, token_ids: Sequence[int]) -> np.ndarray:
        """Read one token of every sequence; logits of the next token of each, shape (batch, vocab)."""
        ops = self.decoder.ops
        ids = check_token_ids(self._one_each(token_ids), self.decoder.config.vocab)
        self.cache.require([1] * len(ids))
        with ops.inference_mode():
            this_pass = self.steady or DecodePass(self.cache, rows=int(self.cache.lengths.max()) + 1)
            logits = ops.to_numpy(self.step(ops.from_numpy(ids), this_pass))
        self.cache.lengths += 1
        return logits

    def set_lengths(self, lengths: Sequence[int] | np.ndarray) -> None:
        """Say how many rows of each sequence hold tokens; whoever says more than were written must write them."""
        self.cache.lengths[:] = lengths
        if self.steady is not None:
            self.steady.lengths[:] = self.decoder.ops.from_numpy(self.cache.lengths)

    def _one_each(self, given: Sequence) -> Sequence:
        batch = len(self.cache.lengths)
        if len(given) != batch:
            raise BadInput(f"{len(given)} sequences are given; this batch has {batch}")
        return given


class SteadySession:
    """One request whose decode step is accelerated: a batch of one behind the face of `Session`."""

    def __init__(self, decoder: Llama, capacity: int, accelerate: Callable[[Callable], Callable]):
        self.batch = BatchSession(decoder, capacity, 1, accelerate)

    def prefill(self, token_ids: Sequence[int]) -> np.ndarray:
        """As `Session.prefill`."""
        return self.batch.prefill([token_ids])[0]

    def decode_step(self, token_id: int) -> np.ndarray:
        """As `Session.decode_step`."""
        return self.batch.decode_step([token_id])[0]
