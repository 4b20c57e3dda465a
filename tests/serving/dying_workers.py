"""Workers whose own process is killed, or whose payload is damaged, at the moment that the request's id names.

Only at a request's first attempt, unless the id says "always".
"""

import os
import signal
import time
from dataclasses import replace

import numpy as np

from tinyinfer.serving.workers import DecodeWorker, PrefillWorker


def meant(order, moment):
    return moment in order.request_id and (order.attempt == 1 or "always" in order.request_id)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class DyingPrefillWorker(PrefillWorker):
    def prefill(self, order):
        if meant(order, "kill prefill"):
            die()
        news, payload = super().prefill(order)
        return news, damaged(payload, order)


class DyingDecodeWorker(DecodeWorker):
    def receive(self, order, fetch):
        if meant(order, "before transfer"):
            die()

        def slow_fetch(stopped):
            if meant(order, "lost in transfer"):
                time.sleep(1.5)  # long enough for the test to kill the sender
            payload = fetch(stopped)
            if meant(order, "during transfer"):
                die()
            return payload

        return super().receive(order, slow_fetch)

    def decode(self, request_id):
        order = self._held[request_id].order
        if meant(order, "after transfer"):
            die()
        for number, step in enumerate(super().decode(request_id), start=1):
            if "slow" in request_id:
                time.sleep(0.4)
            if meant(order, f"step {number}"):
                die()
            yield step


def damaged(payload, order):
    header, keys, values = payload.header, payload.keys, payload.values
    if meant(order, "flip K") or meant(order, "flip V"):
        block = (keys if "flip K" in order.request_id else values).copy()
        block.view(np.uint32)[-1, -1, -1, -1] ^= 1 << 7
        return replace(payload, **{"keys" if "flip K" in order.request_id else "values": block})
    if meant(order, "layer order"):
        return replace(payload, values=np.ascontiguousarray(values[::-1]))
    if meant(order, "dtype"):
        return replace(payload, keys=keys.astype(np.float64))
    if meant(order, "layout"):
        return replace(payload, keys=np.ascontiguousarray(keys.swapaxes(1, 2)))
    if meant(order, "short"):
        return replace(payload, values=np.ascontiguousarray(values[:, :-1]))
    if meant(order, "stale"):
        return replace(payload, header=replace(header, request_id="req_000"))
    return payload
