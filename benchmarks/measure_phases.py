"""TTFT and ITL of SmolLM2-135M over prompt lengths, and this machine's ceilings, as a record for chapter 3.

python benchmarks/measure_phases.py benchmarks/records/cpu-smollm2-135m-phases.json
"""

import statistics
import sys
from pathlib import Path

import numpy as np

import tinyinfer
from tinyinfer.model import numpy_ops
from tinyinfer.performance.ceilings import matmul_rate, read_bandwidth
from tinyinfer.performance.measure import time_request
from tinyinfer.performance.records import write_record

PROMPTS = (16, 32, 64, 128, 256, 512, 1024)
NEW_TOKENS = 32
REPEATS = 5


def main(path: Path) -> None:
    model = tinyinfer.load("smollm2-135m")
    generator = np.random.default_rng(0)
    rows = {p: {"prompt": p, "new_tokens": NEW_TOKENS, "ttft_seconds": [], "itl_seconds": []} for p in PROMPTS}
    time_request(model, [1] * 64, 8)  # warm up
    for _ in range(REPEATS):  # lengths interleaved, so that a slow minute hits them alike
        for prompt, row in rows.items():
            ttft, gaps = time_request(model, generator.integers(model.config.vocab, size=prompt).tolist(), NEW_TOKENS)
            row["ttft_seconds"].append(ttft)
            row["itl_seconds"].append(gaps)
    bandwidths = {name: statistics.median(samples) for name, samples in read_bandwidth(numpy_ops).items()}
    record = write_record(
        path,
        kind="phases",
        protocol=(
            f"random token ids, greedy, {REPEATS} repeats interleaved over prompt lengths after a warm-up; wall clock; "
            "ceilings: best median of sum, dot, matrix-vector product and copy over 1 GiB, and a 2048-square product"
        ),
        rows=list(rows.values()),
        packages=(),
        model=model.config.name,
        backend=model.backend,
        bandwidths=bandwidths,
        read_bytes_per_second=max(bandwidths.values()),
        matmul_flops_per_second=statistics.median(matmul_rate(numpy_ops)),
    )
    for row in record["rows"]:
        ttft = statistics.median(row["ttft_seconds"])
        tpot = statistics.median(sum(gaps) / len(gaps) for gaps in row["itl_seconds"])
        print(f"prompt {row['prompt']:5}: TTFT {ttft * 1e3:8.1f} ms, TPOT {tpot * 1e3:6.2f} ms")
    print(f"read {record['read_bytes_per_second'] / 1e9:.1f} GB/s")
    print(f"matmul {record['matmul_flops_per_second'] / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
