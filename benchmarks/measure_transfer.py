"""Hand-off of a 512-token SmolLM2 cache against Ray moving plain arrays between the same nodes, as a record.

    python benchmarks/measure_transfer.py benchmarks/records/cpu-smollm2-135m-transfer.json

All are interleaved in one run. A hand-off is everything from one cache to the other: checksums, packing, storing,
fetching, checking, committing. A plain move is storing and fetching one array. Seconds are those spent inside the two
worker processes; what the router and the calls to workers cost is measured with whole requests.
"""

import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tinyinfer.performance.records import write_record
from tinyinfer.performance.transfer import fit_link, payload_bytes
from tinyinfer.serving.disaggregate import open_engine
from tinyinfer.serving.pool import Deadline
from tinyinfer.serving.router import Router, finish
from tinyinfer.serving.workers import Order

MODEL, PROMPT, REPEATS = "smollm2-135m", 512, 11
LINK_BYTES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
PATIENCE_SECONDS = 600.0


@ray.remote(num_cpus=0)
class Mover:
    """Stores plain arrays on its node and fetches those of another."""

    def store(self, size_bytes: int) -> tuple[list, float]:
        array = np.ones(size_bytes // 4, np.float32)
        started = time.perf_counter()
        reference = ray.put(array)
        return [reference], time.perf_counter() - started

    def fetch(self, reference: list) -> tuple[int, float]:
        started = time.perf_counter()
        array = ray.get(reference[0])
        return array.nbytes, time.perf_counter() - started


def move_plain(sender, receiver, size_bytes: int) -> dict[str, float]:
    reference, stored = ray.get(sender.store.remote(size_bytes))
    moved, fetched = ray.get(receiver.fetch.remote(reference))
    assert moved == size_bytes
    return {"store": stored, "fetch": fetched}


def hand_off(router: Router, ids: tuple[int, ...], number: int) -> dict[str, float]:
    prefill, decode = router.prefill_pool.workers[0], router.decode_pool.workers[0]
    order = Order(f"hand-off {number}", 1, ids, (), 1, 2)
    news, reference = prefill.prefill(order, Deadline(PATIENCE_SECONDS))
    arrived = decode.receive(order, reference, Deadline(PATIENCE_SECONDS))
    assert decode.cancel(order.request_id, PATIENCE_SECONDS)
    return {"store": news.pack_seconds, "fetch": arrived.receive_seconds}


def main(path: Path) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # inherited by the workers
    with open_engine(MODEL, slots=2048) as router:
        ids = tuple(np.random.default_rng(0).integers(router.config.vocab, size=PROMPT).tolist())
        size = payload_bytes(router.config, PROMPT)
        sender, receiver = (
            Mover.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(worker.facts()["node"], soft=False)
            ).remote()
            for worker in (router.prefill_pool.workers[0], router.decode_pool.workers[0])
        )
        rows = {"hand-off": {"bytes": size, "seconds": []}, "plain array": {"bytes": size, "seconds": []}}
        rows |= {f"plain array of {n} bytes": {"bytes": n, "seconds": []} for n in LINK_BYTES}
        timings = []
        for repeat in range(-2, REPEATS):  # two rounds to warm up
            samples = {"hand-off": hand_off(router, ids, repeat), "plain array": move_plain(sender, receiver, size)}
            samples |= {f"plain array of {n} bytes": move_plain(sender, receiver, n) for n in LINK_BYTES}
            request = router.submit(ids, 2, deadline_seconds=PATIENCE_SECONDS)
            finish(request)
            if repeat >= 0:
                timings.append(request.timing())
                for name, sample in samples.items():
                    rows[name]["seconds"].append(sample)

    def median(name: str) -> float:
        return statistics.median(sum(sample.values()) for sample in rows[name]["seconds"])

    points = [
        (rows[name]["bytes"], sum(sample.values())) for name in rows if "of" in name for sample in rows[name]["seconds"]
    ]
    link = fit_link(*zip(*points, strict=True))
    overheads = [timing.overhead_seconds / timing.decode_ttft_seconds for timing in timings]
    record = write_record(
        path,
        kind="transfer",
        protocol=(
            f"{MODEL}, {PROMPT} random tokens, float32; one prefill and one decode worker, each a process on a Ray "
            f"node of its own on one machine, one thread each; {REPEATS} rounds after 2 to warm up, all kinds "
            "interleaved in each round; seconds inside the workers: store (hand-off: with "
            "checksums and packing) and fetch (hand-off: "
            "with checking and committing)"
        ),
        rows=[{"what": name, **row} for name, row in rows.items()],
        packages=("ray",),
        model=MODEL,
        prompt=PROMPT,
        bandwidth_share=median("plain array") / median("hand-off"),
        link=asdict(link),
        predicted_seconds=link.seconds_for(size),
        requests=[asdict(timing) for timing in timings],
        overhead_share_of_ttft=statistics.median(overheads),
    )
    for name, row in rows.items():
        print(f"{name:32} {row['bytes'] / median(name) / 1e9:6.2f} GB/s, {median(name) * 1e3:8.2f} ms")
    print(f"hand-off reaches {record['bandwidth_share']:.0%} of a plain array's bandwidth")
    print(
        f"link {link.bytes_per_second / 1e9:.2f} GB/s + {link.latency_seconds * 1e3:.2f} ms: predicts "
        f"{record['predicted_seconds'] * 1e3:.1f} ms for the payload"
    )
    print(f"router, headers and calls: {record['overhead_share_of_ttft']:.1%} of TTFT")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
