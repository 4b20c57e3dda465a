"""The router: takes requests, first come first served, and walks each through prefill, transfer and decode.

It sees tokens, headers and the news of workers, never a cache. How workers are reached is behind two protocols; with
Ray it stands in `disaggregate`.

A request waits for a prefill worker, then for a decode worker with enough free slots; only then its cache crosses, so
that rows always have a place to go. Until it has crossed the prefill worker stays taken, so at most one cache per
prefill worker waits, and the pressure reaches the queue. That holds `max_waiting` requests; one more is refused.

A worker that dies loses its caches. The router still has the tokens: prompt and generated tokens are prefilled again
elsewhere, and the token in hand, which the client has seen, is kept. So none is lost and none comes twice.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tinyinfer.errors import BadInput
from tinyinfer.loading.tokenizer import Tokenizer
from tinyinfer.model.config import ModelConfig
from tinyinfer.serving.failures import DeadlineExceeded, PayloadLost, QueueFull, TransferRefused, WorkerLost
from tinyinfer.serving.language_model import Completion, TokenEvent
from tinyinfer.serving.pool import Deadline, Pool
from tinyinfer.serving.request import Request
from tinyinfer.serving.session import check_token_ids
from tinyinfer.serving.trace import Stage, Trace, collect_trace
from tinyinfer.serving.workers import Arrived, Order, Prefilled, Step

MOST_REFUSALS = 3  # hand-offs of one request that may arrive damaged before it is given up
CANCEL_PATIENCE_SECONDS = 5.0


class PrefillHandle(Protocol):
    """How the router reaches a prefill worker. `prefill` gives a reference to the payload, never the payload."""

    name: str

    def prefill(self, order: Order, deadline: Deadline) -> tuple[Prefilled, Any]: ...

    def answers(self, patience_seconds: float) -> bool: ...


class DecodeHandle(Protocol):
    """How the router reaches a decode worker, which fetches the payload behind `reference` itself."""

    name: str

    def receive(self, order: Order, reference: Any, deadline: Deadline) -> Arrived: ...

    def decode(self, request_id: str, deadline: Deadline) -> Iterator[Step]: ...

    def cancel(self, request_id: str, patience_seconds: float) -> bool: ...

    def answers(self, patience_seconds: float) -> bool: ...


class Router:
    """Serves many requests at once; the face of a split engine."""

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        prefill_workers: Sequence[PrefillHandle],
        decode_workers: Sequence[DecodeHandle],
        slots: int,
        places: int = 16,
        max_waiting: int = 64,
    ):
        self.config, self.tokenizer, self.max_waiting = config, tokenizer, max_waiting
        self.prefill_pool = Pool("prefill", list(prefill_workers), 1, 1)
        self.decode_pool = Pool("decode", list(decode_workers), slots, places)
        self._arrivals = itertools.count(1)
        self._live: dict[str, Request] = {}
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._closed = threading.Event()

    def submit(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 64,
        deadline_seconds: float = 60.0,
        request_id: str | None = None,
        want_rows: bool = False,
    ) -> Request:
        """Check a request and take it on. Greedy: every token is the largest logit.

        Raises `BadInput` for a wrong request or an id that is in use, `QueueFull` when too many wait already.
        """
        ids = check_request(self.config, self.tokenizer, prompt, max_new_tokens, self.decode_pool.slots)
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(list(ids))
        deadline = Deadline(deadline_seconds)
        with self._lock:
            arrival = next(self._arrivals)
            request_id = request_id or f"req_{arrival:03}"
            order = Order(request_id, 1, ids, (), None, max_new_tokens, want_rows)
            if request_id in self._live:
                raise BadInput(f"request_id {request_id!r} is in use by a request under way")
            if self._closed.is_set():
                raise QueueFull("the router is closed")
            waiting = sum(not request.started for request in self._live.values())
            if waiting >= self.max_waiting:
                raise QueueFull(f"{waiting} requests wait already; max_waiting is {self.max_waiting}")
            request = Request(order, arrival, text, deadline, self.tokenizer)
            self._live[request_id] = request
            thread = threading.Thread(target=self._serve, args=(request,), name=request_id, daemon=True)
            self._threads.add(thread)
        thread.start()
        return request

    def stream(self, prompt: str | Sequence[int], max_new_tokens: int = 64, **options: Any) -> Iterator[TokenEvent]:
        """Yield each token as the router gets it. Options as in `submit`."""
        request = self.submit(prompt, max_new_tokens, **options)
        return (event for event in request.events() if isinstance(event, TokenEvent))

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 64, **options: Any) -> Completion:
        """Run a request to its end. Options as in `submit`."""
        request = self.submit(prompt, max_new_tokens, **options)
        return finish(request)

    def walk(self, prompt: str | Sequence[int], max_new_tokens: int = 64, **options: Any) -> Iterator[Stage]:
        """Yield each stage of one request as it happens, K and V included: for people, so copies come to the router."""
        request = self.submit(prompt, max_new_tokens, want_rows=True, **options)
        return (event for event in request.events() if not isinstance(event, TokenEvent))

    def trace(self, prompt: str | Sequence[int], max_new_tokens: int = 64, **options: Any) -> Trace:
        """The whole walk of one request."""
        return collect_trace(list(self.walk(prompt, max_new_tokens, **options)))

    def close(self) -> None:
        """Stop every request under way and take no more."""
        self._closed.set()
        with self._lock:
            threads = list(self._threads)
            for request in self._live.values():
                request.deadline.bring_forward()
        for thread in threads:
            thread.join(timeout=2 * CANCEL_PATIENCE_SECONDS)

    def _serve(self, request: Request) -> None:
        try:
            request.begin()
            while not request.finished(self.config.eos_ids):
                try:
                    self._attempt(request)
                except (WorkerLost, PayloadLost):
                    request.recoveries += 1
                except TransferRefused:
                    request.refusals += 1
                    if request.refusals == MOST_REFUSALS:
                        raise
            outcome = None
        except DeadlineExceeded as late:
            limit = request.deadline.seconds
            outcome = DeadlineExceeded(
                f"{request.request_id} was stopped or not finished within {limit} s "
                f"({len(request.tokens)} tokens made, {request.recoveries} recoveries): {late}"
            )
        except Exception as wrong:  # whatever it is, the client must hear of it
            outcome = wrong
        with self._lock:
            del self._live[request.request_id]
            self._threads.discard(threading.current_thread())
        request.end(outcome)

    def _attempt(self, request: Request) -> None:
        """One way through prefill, transfer and decode; raises at the first worker that is lost."""
        with self.prefill_pool.take(1, request.arrival, request.deadline) as prefill:
            request.started = True
            request.stamp("prefill")
            reference = self._prefill(request, prefill.worker)
            if request.finished(self.config.eos_ids):
                return
            decode = self.decode_pool.take(request.order.slots, request.arrival, request.deadline)
            with decode:
                request.stamp("transfer")
                try:
                    news = decode.worker.receive(request.next_order(), reference, request.deadline)
                    del reference  # nobody else needs the payload: its memory is free again
                    request.take_arrived(news)
                    prefill.end()
                    for step in decode.worker.decode(request.request_id, request.deadline):
                        request.take_step(step, self._is_last(request, step.next_token))
                except PayloadLost:
                    self._lose(self.prefill_pool, prefill.worker)
                    raise
                except WorkerLost:
                    self._lose(self.decode_pool, decode.worker)
                    raise
                except DeadlineExceeded:
                    if not self._cancel(decode.worker, request.request_id):
                        self._lose(self.decode_pool, decode.worker)
                    raise

    def _prefill(self, request: Request, worker: PrefillHandle) -> Any:
        try:
            news, reference = worker.prefill(request.next_order(), request.deadline)
        except (WorkerLost, DeadlineExceeded):  # after a deadline it may be busy for long
            self._lose(self.prefill_pool, worker)
            raise
        request.take_prefilled(news, self._is_last(request, news.next_token))
        return reference

    def _cancel(self, worker: DecodeHandle, request_id: str) -> bool:
        try:
            return worker.cancel(request_id, CANCEL_PATIENCE_SECONDS)
        except WorkerLost:
            return False

    def _is_last(self, request: Request, token_id: int) -> bool:
        return len(request.tokens) + 1 == request.order.max_new_tokens or token_id in self.config.eos_ids

    def _lose(self, pool: Pool, worker: Any) -> None:
        """Lend the worker to nobody until it answers again: Ray may be restarting it."""

        if pool.lose(worker):
            thread = threading.Thread(target=self._await_return, args=(pool, worker), daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _await_return(self, pool: Pool, worker: Any) -> None:
        while not self._closed.wait(0.05):
            if worker.answers(patience_seconds=1.0):
                pool.welcome(worker)
                break
        with self._lock:
            self._threads.discard(threading.current_thread())


def check_request(
    config: ModelConfig, tokenizer: Tokenizer, prompt: str | Sequence[int], max_new_tokens: int, slots: int
) -> tuple[int, ...]:
    """The prompt's token ids; `BadInput` when no decode worker with so many slots can ever serve the request."""
    token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    ids = tuple(check_token_ids(token_ids, config.vocab).tolist())
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
        raise BadInput(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number of at least 1")
    needed = len(ids) + max_new_tokens - 1
    if needed > min(config.max_context, slots):
        raise BadInput(
            f"{len(ids)} prompt tokens and max_new_tokens {max_new_tokens} need {needed} slots; "
            f"a decode worker has {slots} and model {config.name} reads at most {config.max_context} tokens"
        )
    return ids


def finish(request: Request) -> Completion:
    """Read a request's events to the end."""
    events = [event for event in request.events() if isinstance(event, TokenEvent)]
    return Completion(
        text="".join(event.text for event in events),
        token_ids=[event.token_id for event in events],
        prompt_token_ids=list(request.order.input_tokens),
        timing=request.timing().client_timing,
    )
