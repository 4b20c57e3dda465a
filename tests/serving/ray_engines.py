"""A Ray cluster for the tests of one file, and engines on it, one after the other."""

import os
import signal
import time
from contextlib import contextmanager

import dying_workers
import psutil
from dying_workers import DyingDecodeWorker, DyingPrefillWorker
from ray import cloudpickle
from ray.exceptions import RayError

from tinyinfer.serving.cluster import LocalCluster
from tinyinfer.serving.disaggregate import open_engine

cloudpickle.register_pickle_by_value(dying_workers)  # Ray's processes do not see the tests' folder
DYING = {"prefill_kind": DyingPrefillWorker, "decode_kind": DyingDecodeWorker}


def alive(processes):
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def wait_until(condition, seconds=300.0):
    limit = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < limit, "it did not come to be"
        time.sleep(0.02)


def wait_until_ended(processes, seconds=60.0):
    limit = time.perf_counter() + seconds
    while left := alive(processes):
        assert time.perf_counter() < limit, f"these have not ended: {[(p.pid, p.cmdline()) for p in left]}"
        time.sleep(0.02)


@contextmanager
def local_cluster():
    """A node for the router, one for prefill, two for decode. Every process of it ends."""
    before = set(psutil.Process().children(recursive=True))
    cluster = LocalCluster(prefill_nodes=1, decode_nodes=2)
    yield cluster
    processes = set(psutil.Process().children(recursive=True)) - before
    assert len(processes) > 4
    cluster.close()
    wait_until_ended(processes)


@contextmanager
def engine(cluster, model="toy", **options):
    """Workers on the shared cluster, which is joined by its address; their processes end with the block."""
    with open_engine(model, address=cluster.address, **{"decode_workers": 2} | options) as router:
        workers = [*router.prefill_pool.workers, *router.decode_pool.workers]
        yield router
        processes = [psutil.Process(worker.facts()["pid"]) for worker in workers if worker.answers(5)]
    wait_until_ended(processes)


def no_slot_is_lost(router):
    pool = router.decode_pool
    try:
        counted = {worker.name: worker.facts()["free_slots"] for worker in pool.workers}
    except RayError:  # one is being restarted
        return False
    full = {worker.name: pool.slots for worker in pool.workers}
    return counted == pool.free_slots == full and set(router.prefill_pool.free_slots.values()) == {1}


def kill(worker):
    """End a worker's process, without a warning."""
    os.kill(worker.facts()["pid"], signal.SIGKILL)
