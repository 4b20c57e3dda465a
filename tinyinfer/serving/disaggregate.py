"""Prefill here, decode there, on Ray: workers are actors on different nodes, the KV cache crosses between their stores.

    with open_engine("toy") as router:
        trace = router.trace("写诗", max_new_tokens=8)

Without an address this starts a Ray cluster of its own on this machine, a node for each worker, that listens on
127.0.0.1 only and asks for a token. With an address it joins a cluster that runs, and places its workers on nodes that
were started with `ray start --address=HOST:PORT --resources='{"prefill": 1}'`, or `"decode"`. The cache goes from the
prefill worker's object store to the decode worker's; the driver, where the router runs, passes on a reference.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyinfer.errors import BadInput
from tinyinfer.loading.checkpoint import read_checkpoint
from tinyinfer.model.backend import backend_options
from tinyinfer.performance.transfer import payload_bytes
from tinyinfer.serving.cluster import START_SECONDS, LocalCluster, connect
from tinyinfer.serving.failures import DeadlineExceeded, PayloadLost, WorkerLost
from tinyinfer.serving.language_model import LanguageModel
from tinyinfer.serving.pool import Deadline
from tinyinfer.serving.router import Router
from tinyinfer.serving.transfer import Payload
from tinyinfer.serving.workers import Arrived, DecodeWorker, Order, Prefilled, PrefillWorker, Step

# isort: split
import ray  # after `cluster`, which says how to get it
import ray.exceptions
from ray.experimental import get_object_locations

# A cache that has not come after FETCH_SECONDS, and the time of its bytes on a link as slow as this, is lost.
FETCH_SECONDS = 5.0
SLOWEST_BYTES_PER_SECOND = 50e6


@contextmanager
def open_engine(
    source: str | Path,
    backend: str = "numpy",
    device: str | None = None,
    dtype: str | None = None,
    prefill_workers: int = 1,
    decode_workers: int = 1,
    slots: int | None = None,
    places: int = 16,
    max_waiting: int = 64,
    address: str | None = None,
    prefill_kind: type[PrefillWorker] = PrefillWorker,
    decode_kind: type[DecodeWorker] = DecodeWorker,
) -> Iterator[Router]:
    """Start workers of a model (as for `tinyinfer.load`) and a router over them; everything ends with the block.

    Each decode worker holds caches of `slots` rows in all, twice the model's context unless said otherwise, for at most
    `places` requests at once; `max_waiting` more may wait. `address` joins a cluster instead of starting one; one that
    asks for no token is joined only with RAY_AUTH_MODE=disabled in the environment. Raises `BadInput` for a model or
    a backend that is not to be had, or a cluster that cannot be joined or has no place for the workers.
    """
    for name, count in (("prefill_workers", prefill_workers), ("decode_workers", decode_workers)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise BadInput(f"{name} is {count!r}; it must be a whole number of at least 1")
    options = {"backend": backend, "device": device, "dtype": dtype}
    backend_options(backend, device, dtype)
    checkpoint = read_checkpoint(source)
    slots = 2 * checkpoint.config.max_context if slots is None else slots
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise BadInput(f"slots is {slots!r}; it must be a whole number of at least 1")
    with ExitStack() as cleanup:
        if address is None:
            cluster = LocalCluster(prefill_workers, decode_workers)
            cleanup.callback(cluster.close)
            address = cluster.address
        connect(address)
        cleanup.callback(ray.shutdown)
        router = Router(
            checkpoint.config,
            checkpoint.tokenizer,
            *start_workers(source, options, prefill_workers, decode_workers, slots, places, prefill_kind, decode_kind),
            slots=slots,
            places=places,
            max_waiting=max_waiting,
        )
        cleanup.callback(router.close)
        yield router


def start_workers(
    source: str | Path,
    options: dict[str, Any],
    prefill_workers: int,
    decode_workers: int,
    slots: int,
    places: int = 16,
    prefill_kind: type[PrefillWorker] = PrefillWorker,
    decode_kind: type[DecodeWorker] = DecodeWorker,
) -> tuple[list["RayPrefill"], list["RayDecode"]]:
    """Place the actors, and wait until each has read the model. A killed one is restarted by Ray.

    Raises `BadInput` when the nodes of the cluster have no place for so many, `WorkerLost` when one does not start.
    """
    there = ray.cluster_resources()
    for kind, count in (("prefill", prefill_workers), ("decode", decode_workers)):
        if there.get(kind, 0) < count:
            raise BadInput(
                f"{count} {kind} workers need as many nodes started with --resources='{{\"{kind}\": 1}}'; "
                f"the cluster has places for {there.get(kind, 0):g}"
            )
    always: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0}
    remote: Any = ray.remote  # its annotations do not know concurrency groups
    prefill_actor = remote(**always, resources={"prefill": 1})(_PrefillActor)
    decode_actor = remote(**always, resources={"decode": 1}, max_concurrency=places, concurrency_groups={"control": 2})(
        _DecodeActor
    )
    prefill = [
        RayPrefill(f"prefill {i}", prefill_actor.remote(source, options, prefill_kind)) for i in range(prefill_workers)
    ]
    decode = [
        RayDecode(f"decode {i}", decode_actor.remote(source, options, decode_kind, slots))
        for i in range(decode_workers)
    ]
    try:
        ray.get([worker.ask_facts() for worker in (*prefill, *decode)], timeout=START_SECONDS)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as wrong:
        reason = str(wrong).strip().splitlines()[-1].strip()
        raise WorkerLost(f"a worker did not start: {reason}") from None
    return prefill, decode


def object_facts(reference: list) -> tuple[int, set[str]]:
    """What Ray knows of a payload in its object stores: the size in bytes, and the nodes that hold a copy."""
    known = get_object_locations(reference)[reference[0]]
    return known["object_size"], set(known["node_ids"])


class _PrefillActor:
    """A prefill worker in a process of its own, on a node with the resource `prefill`."""

    def __init__(self, source: str | Path, options: dict[str, Any], kind: type[PrefillWorker]):
        self.worker = kind(_load_model(source, options))

    def facts(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    def prefill(self, order: Order) -> tuple[Prefilled, list]:
        news, payload = self.worker.prefill(order)
        started = time.perf_counter()
        reference = ray.put(payload)
        packed = news.pack_seconds + time.perf_counter() - started
        # In a list, so that the router gets the reference and not what it refers to.
        return replace(news, pack_seconds=packed), [reference]


class _DecodeActor:
    """A decode worker in a process of its own, on a node with the resource `decode`."""

    def __init__(self, source: str | Path, options: dict[str, Any], kind: type[DecodeWorker], slots: int):
        self.worker = kind(_load_model(source, options), slots)

    def facts(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "free_slots": self.worker.free_slots,
        }

    def receive(self, order: Order, reference: list) -> Arrived:
        config = self.worker.model.config
        patience = FETCH_SECONDS + payload_bytes(config, order.length) / SLOWEST_BYTES_PER_SECOND
        limit = time.perf_counter() + patience

        def fetch(stopped: Callable[[], bool]) -> Payload:
            # Ray itself may take a minute to notice that a whole node is gone.
            while not ray.wait(reference, timeout=0.1)[0]:
                if stopped() or time.perf_counter() > limit:
                    raise PayloadLost(f"{order.request_id}: its cache did not come within {patience:.1f} s")
            try:
                payload: Any = ray.get(reference[0])
                return payload
            except ray.exceptions.ObjectLostError as lost:
                raise PayloadLost(f"{order.request_id}: {type(lost).__name__}") from None

        return self.worker.receive(order, fetch)

    def decode(self, request_id: str) -> Iterator[Step]:
        yield from self.worker.decode(request_id)

    def cancel(self, request_id: str, patience_seconds: float) -> bool:
        return self.worker.cancel(request_id, patience_seconds)


class RayPrefill:
    """A `PrefillHandle` on a Ray actor."""

    def __init__(self, name: str, actor: Any):
        self.name, self.actor = name, actor

    def ask_facts(self) -> Any:
        """Reference to its process id and node; comes when the worker is ready."""
        return self.actor.facts.remote()

    def facts(self) -> dict[str, Any]:
        """Its process id and node."""
        return ray.get(self.ask_facts(), timeout=START_SECONDS)

    def prefill(self, order: Order, deadline: Deadline) -> tuple[Prefilled, Any]:
        """Run it there; the payload stays there."""
        return _get(self.actor.prefill.remote(order), deadline, self.name)

    def answers(self, patience_seconds: float) -> bool:
        """Whether it is alive and free to answer."""
        return _answers(self.ask_facts, patience_seconds)


class RayDecode:
    """A `DecodeHandle` on a Ray actor."""

    def __init__(self, name: str, actor: Any):
        self.name, self.actor = name, actor

    def ask_facts(self) -> Any:
        """Reference to its process id, node and free slots; comes when the worker is ready."""
        return self.actor.facts.options(concurrency_group="control").remote()

    def facts(self) -> dict[str, Any]:
        """Its process id, node and free slots."""
        return ray.get(self.ask_facts(), timeout=START_SECONDS)

    def receive(self, order: Order, reference: Any, deadline: Deadline) -> Arrived:
        """Let it fetch, check and commit a payload."""
        return _get(self.actor.receive.remote(order, reference), deadline, self.name)

    def decode(self, request_id: str, deadline: Deadline) -> Iterator[Step]:
        """Its steps as they are made."""
        steps = self.actor.decode.options(num_returns="streaming").remote(request_id)
        while True:
            _wait(steps, deadline, self.name)
            try:
                step = next(steps)
            except StopIteration:
                return
            yield _get(step, deadline, self.name)

    def cancel(self, request_id: str, patience_seconds: float) -> bool:
        """Stop a request there; False when it does not stop in time."""
        call = self.actor.cancel.options(concurrency_group="control").remote(request_id, patience_seconds)
        try:
            return _get(call, Deadline(2 * patience_seconds), self.name)
        except DeadlineExceeded:
            return False

    def answers(self, patience_seconds: float) -> bool:
        """Whether it is alive."""
        return _answers(self.ask_facts, patience_seconds)


def _load_model(source: str | Path, options: dict[str, Any]) -> LanguageModel:
    checkpoint = read_checkpoint(source)
    return LanguageModel(checkpoint.config, checkpoint.weights, checkpoint.tokenizer, **backend_options(**options))


def _wait(reference: Any, deadline: Deadline, name: str) -> None:
    while not ray.wait([reference], timeout=deadline.patience, fetch_local=False)[0]:
        if deadline.passed:
            raise DeadlineExceeded(f"{name} did not answer in time")


def _get(reference: Any, deadline: Deadline, name: str) -> Any:
    """The value behind a reference, with Ray's many ways to say that a process is gone as one."""
    _wait(reference, deadline, name)
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as wrong:  # the worker's own exception, wrapped
        raise wrong.cause from None
    except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.ObjectLostError) as gone:
        raise WorkerLost(f"{name}: {type(gone).__name__}") from None


def _answers(ask: Callable[[], Any], patience_seconds: float) -> bool:
    try:
        ray.get(ask(), timeout=patience_seconds)
    except ray.exceptions.RayError:
        return False
    return True
