"""The two kinds of worker, free of any cluster: what runs on a prefill node, and what runs on a decode node."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tinyinfer.model.cache import KVCache
from tinyinfer.serving.failures import TransferRefused
from tinyinfer.serving.language_model import LanguageModel
from tinyinfer.serving.sampling import Sampling, choose_token
from tinyinfer.serving.session import Session
from tinyinfer.serving.trace import Rows, check_rows
from tinyinfer.serving.transfer import Payload, expected_header, pack_rows, receive_rows

GREEDY = Sampling()


@dataclass(frozen=True)
class Order:
    """What the router asks of a worker. Fed are `input_tokens`, then `generated_tokens`; `next_token` is not yet.

    `attempt` counts the hand-offs of this request. With `want_rows` K and V come back to be shown, beside the transfer
    itself.
    """

    request_id: str
    attempt: int
    input_tokens: tuple[int, ...]
    generated_tokens: tuple[int, ...]
    next_token: int | None
    max_new_tokens: int
    want_rows: bool = False

    @property
    def length(self) -> int:
        """Rows that the cache holds when every token fed so far has been read."""
        return len(self.input_tokens) + len(self.generated_tokens)

    @property
    def slots(self) -> int:
        """Rows that it may come to hold: the last output token is never fed."""
        return len(self.input_tokens) + self.max_new_tokens - 1


@dataclass(frozen=True, eq=False)
class Prefilled:
    """The news of a prefill; the cache itself goes another way. Times are the worker's own, in seconds.

    Logits and rows come only if they were asked for: they are to be shown, and a real vocabulary is long.
    """

    next_token: int
    logits: np.ndarray | None
    checksums: dict[str, dict[str, str]]
    payload_bytes: int
    rows: Rows | None
    compute_seconds: float
    pack_seconds: float


@dataclass(frozen=True)
class Arrived:
    """The whole payload has been fetched, checked and committed by the decode worker."""

    payload_bytes: int
    checksums: dict[str, dict[str, str]]
    receive_seconds: float


@dataclass(frozen=True, eq=False)
class Step:
    """One decode step: `fed` was read, `next_token` chosen; `rows` are what was appended, if they were asked for."""

    fed: int
    next_token: int
    rows: Rows | None
    waited_seconds: float
    compute_seconds: float


class PrefillWorker:
    """Reads prompts, one at a time, and packs the rows that it made."""

    def __init__(self, model: LanguageModel):
        self.model = model

    def prefill(self, order: Order) -> tuple[Prefilled, Payload]:
        """Feed all known tokens at once. After a fault these are prompt and generated tokens: the lost rows again."""
        started = time.perf_counter()
        session = self.model.start(capacity=order.length)
        logits = session.prefill([*order.input_tokens, *order.generated_tokens])
        next_token = choose_token(logits, GREEDY, np.random.default_rng())
        check_rows("prefill", session.cache.length, len(order.input_tokens), len(order.generated_tokens))
        computed = time.perf_counter()
        payload = pack_rows(session.cache, order.request_id, order.attempt, self.model.config.name)
        news = Prefilled(
            next_token,
            logits if order.want_rows else None,
            payload.header.checksums_by_layer(),
            payload.nbytes,
            session.cache.as_nested() if order.want_rows else None,
            computed - started,
            time.perf_counter() - computed,
        )
        return news, payload


@dataclass
class _Held:
    """A request whose slots are reserved. Busy while a call works on it; stopped when it was cancelled meanwhile."""

    order: Order
    session: Session | None = None
    busy: bool = True
    stopped: bool = False


class DecodeWorker:
    """Holds the caches of several requests within `slots` rows in all; computes one step at a time."""

    def __init__(self, model: LanguageModel, slots: int):
        self.model = model
        self.slots = slots
        self._held: dict[str, _Held] = {}
        self._changed = threading.Condition()
        self._turn = threading.Lock()

    @property
    def free_slots(self) -> int:
        """Rows that no request has reserved."""
        with self._changed:
            return self.slots - sum(held.order.slots for held in self._held.values())

    def receive(self, order: Order, fetch: Callable[[Callable[[], bool]], Payload]) -> Arrived:
        """Reserve slots, fetch the cache, check it and commit it; `fetch` is told how to learn that it may stop.

        Raises `TransferRefused` when the cache is not what was ordered, when no slots are free for it, or when a
        request of the same id is held. Unless it succeeds, no slot stays taken.
        """
        held = self._reserve(order)
        try:
            started = time.perf_counter()
            payload = fetch(lambda: held.stopped)
            session = self.model.start(capacity=order.slots)
            self.commit(payload, session.cache, order)
            held.session = session
            seconds = time.perf_counter() - started
            return Arrived(payload.nbytes, payload.header.checksums_by_layer(), seconds)
        finally:
            self._rest(held, keep=held.session is not None)

    def commit(self, payload: Payload, cache: KVCache, order: Order) -> None:
        """Check the payload and write it into the cache, which stays empty unless all is well."""
        receive_rows(payload, cache, expected_header(self.model.config, order.request_id, order.attempt, order.length))

    def decode(self, request_id: str) -> Iterator[Step]:
        """Feed the token in hand and go on to the end token or the limit. The slots are free afterwards."""
        with self._changed:
            held = self._held.get(request_id)
            if held is None or held.busy:
                raise TransferRefused(f"no cache of request {request_id!r} has arrived here")
            held.busy = True
        try:
            yield from self._steps(held)
        finally:
            self._rest(held, keep=False)

    def cancel(self, request_id: str, patience_seconds: float) -> bool:
        """Stop a request before its next step; True when it holds no slots any more."""
        with self._changed:
            if (held := self._held.get(request_id)) is not None:
                held.stopped = True
                if not held.busy:
                    del self._held[request_id]
            return self._changed.wait_for(lambda: request_id not in self._held, patience_seconds)

    def _steps(self, held: _Held) -> Iterator[Step]:
        order, session, token = held.order, held.session, held.order.next_token
        assert session is not None and token is not None
        # `max_new_tokens` are chosen in all; the one in hand is number len(generated_tokens) + 1.
        for fed in range(len(order.generated_tokens) + 1, order.max_new_tokens):
            if token in self.model.config.eos_ids or held.stopped:
                return
            asked = time.perf_counter()
            with self._turn:
                started = time.perf_counter()
                logits = session.decode_step(token)
                chosen = choose_token(logits, GREEDY, np.random.default_rng())
                seconds = time.perf_counter() - started
            check_rows("decode", session.cache.length, len(order.input_tokens), fed)
            rows = last_row(session) if order.want_rows else None
            yield Step(token, chosen, rows, started - asked, seconds)
            token = chosen

    def _reserve(self, order: Order) -> _Held:
        with self._changed:
            if order.request_id in self._held:
                raise TransferRefused(f"request_id {order.request_id!r} is in use here already")
            if order.slots > self.free_slots:
                raise TransferRefused(f"{order.request_id} needs {order.slots} slots; {self.free_slots} are free")
            held = self._held[order.request_id] = _Held(order)
            return held

    def _rest(self, held: _Held, keep: bool) -> None:
        with self._changed:
            held.busy = False
            if held.stopped or not keep:
                del self._held[held.order.request_id]
            self._changed.notify_all()


def last_row(session: Session) -> Rows:
    """K and V of the token read last, as one row per layer and head."""
    return {
        layer: {head: {kind: block[-1:] for kind, block in kinds.items()} for head, kinds in heads.items()}
        for layer, heads in session.cache.as_nested().items()
    }
