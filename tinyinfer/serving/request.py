"""A request under way, as the router keeps it: tokens so far, times, and what its client reads."""

import queue
import time
from collections.abc import Iterator, Sequence

from tinyinfer.loading.tokenizer import Tokenizer
from tinyinfer.performance.transfer import RequestTiming
from tinyinfer.serving.language_model import TokenEvent
from tinyinfer.serving.pool import Deadline
from tinyinfer.serving.trace import (
    DecodeStage,
    PrefillStage,
    RequestStage,
    ResultStage,
    Stage,
    Token,
    TransferStage,
    name_token,
)
from tinyinfer.serving.workers import Arrived, Order, Prefilled, Step


class Request:
    """One request under way: its tokens so far, its times, and the events that its client reads."""

    def __init__(self, order: Order, arrival: int, prompt: str, deadline: Deadline, tokenizer: Tokenizer):
        self.order, self.arrival, self.prompt, self.deadline = order, arrival, prompt, deadline
        self.started = False  # its first prefill has begun
        self.recoveries = self.refusals = 0
        self.tokens: list[int] = []
        self.times: dict[str, float] = {}
        self.parts: dict[str, float] = {}
        self._tokenizer, self._pieces = tokenizer, tokenizer.stream()
        self._accepted = time.perf_counter()
        self._token_seconds: list[float] = []
        self._text = ""
        self._transferred = False
        self._events: queue.SimpleQueue[TokenEvent | Stage | Exception | None] = queue.SimpleQueue()

    @property
    def request_id(self) -> str:
        """The name under which it is known everywhere."""
        return self.order.request_id

    def events(self) -> Iterator[TokenEvent | Stage]:
        """Tokens and, if rows were asked for, stages as they happen; raises what ended the request early."""
        try:
            while (event := self._events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.deadline.bring_forward()  # a client that stops reading stops the request

    def next_order(self) -> Order:
        """Where it stands: the next hand-off feeds everything before the token in hand."""
        generated, in_hand = tuple(self.tokens[:-1]), self.tokens[-1] if self.tokens else None
        attempt = self.recoveries + self.refusals + 1
        old = self.order
        return Order(old.request_id, attempt, old.input_tokens, generated, in_hand, old.max_new_tokens, old.want_rows)

    def finished(self, eos_ids: tuple[int, ...]) -> bool:
        """Whether the last token was chosen."""
        return bool(self.tokens) and (len(self.tokens) == self.order.max_new_tokens or self.tokens[-1] in eos_ids)

    def stamp(self, event: str) -> None:
        """Remember when a stage began or ended. The latest counts, until the second token is there."""
        if len(self.tokens) < 2:
            self.times[event] = time.perf_counter() - self._accepted

    def begin(self) -> None:
        """Report what was accepted."""
        self._show(RequestStage(self.request_id, self.prompt, self._named(self.order.input_tokens)))

    def take_prefilled(self, news: Prefilled, last: bool) -> None:
        """The first token is known; after a fault it was known before, and what is in hand stays."""
        self.stamp("prefilled")
        self.parts |= {"prefill_compute_seconds": news.compute_seconds, "pack_seconds": news.pack_seconds}
        if not self.tokens:
            self._add_token(news.next_token, last)
            (in_hand,) = self._named(self.tokens)
            if news.rows is not None and news.logits is not None:
                self._show(PrefillStage(self.request_id, news.rows, news.logits, in_hand))

    def take_arrived(self, news: Arrived) -> None:
        """The cache stands in the decode worker."""
        self.stamp("arrived")
        self.parts["receive_seconds"] = news.receive_seconds
        if not self._transferred:
            self._transferred = True
            (in_hand,) = self._named(self.tokens)
            self._show(TransferStage(self.request_id, news.payload_bytes, news.checksums, (), in_hand))

    def take_step(self, news: Step, last: bool) -> None:
        """One more token."""
        if news.fed != self.tokens[-1]:
            raise RuntimeError(f"{self.request_id}: the worker fed {news.fed}; the token in hand is {self.tokens[-1]}")
        self.stamp("stepped")
        if len(self.tokens) < 2:
            self.parts |= {"waited": news.waited_seconds, "first_step_compute_seconds": news.compute_seconds}
        self._add_token(news.next_token, last)
        *generated, in_hand = self._named(self.tokens)
        self._show(DecodeStage(self.request_id, tuple(generated), in_hand, news.rows or {}))

    def end(self, wrong: Exception | None = None) -> None:
        """Tell the client that nothing follows, or what went wrong."""
        if wrong is None:
            self._show(ResultStage(self.request_id, self._text, self.timing()))
        self._events.put(wrong)

    def timing(self) -> RequestTiming:
        """Its parts, from the stamps of the router's clock and the durations that workers reported."""
        order = ("prefill", "prefilled", "transfer", "arrived", "stepped")
        stamps, last = [], 0.0
        for event in order:
            last = self.times.get(event, last)
            stamps.append(last)
        prefill, prefilled, transfer, arrived, stepped = stamps
        parts = dict(self.parts)
        waited = parts.pop("waited", 0.0)
        return RequestTiming(
            queue_seconds=prefill,
            prefill_seconds=prefilled - prefill,
            decode_queue_seconds=transfer - prefilled + waited,
            transfer_seconds=arrived - transfer,
            first_step_seconds=stepped - arrived - waited,
            token_seconds=tuple(self._token_seconds),
            recoveries=self.recoveries,
            **parts,
        )

    def _add_token(self, token_id: int, last: bool) -> None:
        self.tokens.append(token_id)
        self._token_seconds.append(time.perf_counter() - self._accepted)
        text = self._pieces.add(token_id) + (self._pieces.finish() if last else "")
        self._text += text
        self._events.put(TokenEvent(text, token_id, self._token_seconds[-1]))

    def _show(self, stage: Stage) -> None:
        if self.order.want_rows:
            self._events.put(stage)

    def _named(self, token_ids: Sequence[int]) -> tuple[Token, ...]:
        return tuple(Token(token_id, name_token(self._tokenizer, token_id)) for token_id in token_ids)
