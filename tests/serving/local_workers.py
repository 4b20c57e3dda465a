"""Both kinds of worker in this process, behind the router's protocols: everything but Ray, with faults on demand."""

from tinyinfer.serving.failures import PayloadLost, WorkerLost
from tinyinfer.serving.router import Router
from tinyinfer.serving.workers import DecodeWorker, PrefillWorker


class LocalPrefill:
    """`faults` are called once each, in order, with the payload about to leave; what they return leaves instead."""

    def __init__(self, model, name="prefill 0"):
        self.name, self.worker = name, PrefillWorker(model)
        self.orders, self.faults, self.dead = [], [], False

    def prefill(self, order, deadline):
        self.orders.append(order)
        if self.dead:
            raise WorkerLost(self.name)
        news, payload = self.worker.prefill(order)
        if self.faults:
            payload = self.faults.pop(0)(payload)
        return news, [payload]

    def answers(self, patience_seconds):
        return not self.dead


class LocalDecode:
    """Dies before, during or after the transfer, or after so many steps, as often as `deaths` says; then it is anew."""

    def __init__(self, model, slots, name="decode 0"):
        self.name, self.model, self.slots = name, model, slots
        self.deaths, self.gone_payloads, self.dead, self.served = [], 0, False, []
        self.worker = DecodeWorker(model, slots)

    def receive(self, order, reference, deadline):
        if self.dead:
            raise WorkerLost(self.name)
        if self.gone_payloads:
            self.gone_payloads -= 1
            raise PayloadLost(order.request_id)
        self._die("before")

        def fetch(stopped):
            self._die("during")
            return reference[0]

        arrived = self.worker.receive(order, fetch)
        self._die("after")
        self.served.append(order.request_id)
        return arrived

    def decode(self, request_id, deadline):
        for number, step in enumerate(self.worker.decode(request_id), start=1):
            if deadline.passed:  # as over Ray: the worker goes on until it is cancelled
                from tinyinfer.serving.failures import DeadlineExceeded

                raise DeadlineExceeded(self.name)
            self._die(number)
            yield step

    def cancel(self, request_id, patience_seconds):
        return self.worker.cancel(request_id, patience_seconds)

    def answers(self, patience_seconds):
        return not self.dead

    def _die(self, moment):
        if self.deaths and self.deaths[0] == moment:
            self.deaths.pop(0)
            self.worker = DecodeWorker(self.model, self.slots)
            raise WorkerLost(self.name)


def local_router(model, prefill=1, decode=1, slots=64, **limits):
    """A router over workers of this process."""
    return Router(
        model.config,
        model.tokenizer,
        [LocalPrefill(model, f"prefill {i}") for i in range(prefill)],
        [LocalDecode(model, slots, f"decode {i}") for i in range(decode)],
        slots=slots,
        **limits,
    )
