"""The face that readers use: text in, text out, and below it token ids in, logits out."""

import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig
from tinyinfer.model.llama import Llama
from tinyinfer.model.naive import naive_logits
from tinyinfer.performance.metrics import Timing, timing_from_timestamps
from tinyinfer.serving.batch_session import BatchSession, SteadySession
from tinyinfer.serving.sampling import Sampling, choose_token
from tinyinfer.serving.session import Session, check_token_ids


@dataclass(frozen=True)
class TokenEvent:
    """One output token, `seconds` after the request was accepted.

    `text` is what it adds to the answer: empty while a character of several bytes is unfinished, and for the end token.
    """

    text: str
    token_id: int
    seconds: float


@dataclass(frozen=True)
class Completion:
    """A finished answer: the new text only, its token ids (the end token included, if it came), and the times."""

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    timing: Timing


class LanguageModel:
    """A decoder with its tokenizer. It keeps nothing between requests: each has a session of its own.

    Keywords as `model.backend.backend_options` gives them. Without a tokenizer (None) it takes token ids alone.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Any],
        tokenizer: Any,
        ops: Any,
        backend: str = "numpy",
        fused: bool = True,
        accelerate: Callable[[Callable], Callable] | None = None,
        decode: str = "eager",
    ):
        self.config = config
        self.tokenizer = tokenizer
        self.backend = backend
        self.weights = weights
        self.decoder = Llama(config, weights, ops, fused)
        self.fused = fused
        self.accelerate = accelerate
        self.decode = decode

    def __repr__(self) -> str:
        shown = ("layers", "model_dim", "heads", "kv_heads", "head_dim", "ffn_dim", "vocab")
        sizes = ", ".join(f"{field}={getattr(self.config, field)}" for field in shown)
        return textwrap.fill(f"<{self.config.name}: {sizes}>", 88, subsequent_indent="  ")

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The naive way, whole past recomputed: logits after every prefix, float32 of shape (seen, vocab)."""
        ids = check_token_ids(token_ids, self.config.vocab)
        if len(ids) > self.config.max_context:
            raise BadInput(f"{len(ids)} tokens; model {self.config.name} reads at most {self.config.max_context}")
        return naive_logits(self.config, dict(self.weights), ids.tolist())

    @overload
    def start(self, capacity: int) -> Session: ...
    @overload
    def start(self, capacity: int, batch: int) -> BatchSession: ...
    def start(self, capacity, batch=None):
        """Begin one request with room for `capacity` tokens: prompt + new tokens - 1, as the last is never fed.

        With `batch` begin so many that step together, each with that room: a `BatchSession`.
        """
        if batch is not None:
            return BatchSession(self.decoder, capacity, batch, self.accelerate)
        if self.accelerate is not None:
            return SteadySession(self.decoder, capacity, self.accelerate)
        return Session(self.decoder, capacity)

    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[TokenEvent]:
        """Check the request, then yield each token as it is chosen; ends after an end token or `max_new_tokens`."""
        started = time.perf_counter()
        sampling = Sampling(temperature, top_k, top_p, seed)
        prompt_ids = self._prompt_ids(prompt)
        if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
            raise BadInput(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number of at least 1")
        slots = len(prompt_ids) + max_new_tokens - 1
        if slots > self.config.max_context:
            raise BadInput(
                f"{len(prompt_ids)} prompt tokens and max_new_tokens {max_new_tokens} need {slots} slots; "
                f"model {self.config.name} reads at most {self.config.max_context} tokens"
            )
        session = self.start(slots)  # allocated, and so refused, before the first token is asked for
        return self._stream(session, prompt_ids, max_new_tokens, sampling, started)

    def _stream(self, session, prompt_ids, max_new_tokens, sampling, started) -> Iterator[TokenEvent]:
        generator = np.random.default_rng(sampling.seed)
        pieces = self.tokenizer.stream()
        logits = session.prefill(prompt_ids)
        for remaining in reversed(range(max_new_tokens)):
            token_id = choose_token(logits, sampling, generator)
            last = remaining == 0 or token_id in self.config.eos_ids
            text = pieces.add(token_id) + (pieces.finish() if last else "")
            yield TokenEvent(text, token_id, time.perf_counter() - started)
            if last:
                return
            logits = session.decode_step(token_id)

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 64, **sampling) -> Completion:
        """Run a request to its end. Keywords as in `stream`."""
        prompt_ids = self._prompt_ids(prompt)
        events = list(self.stream(prompt_ids, max_new_tokens, **sampling))
        return Completion(
            text="".join(event.text for event in events),
            token_ids=[event.token_id for event in events],
            prompt_token_ids=prompt_ids,
            timing=timing_from_timestamps(0.0, [event.seconds for event in events]),
        )

    def _prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, (str, Sequence, np.ndarray)):
            raise BadInput(f"the prompt is {prompt!r}; it must be text or a sequence of token ids")
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return check_token_ids(ids, self.config.vocab).tolist()
