"""ITL of running decodes while a long prompt arrives: colocated against split, same threads, same load, as a record.

    python benchmarks/measure_interference.py benchmarks/records/cpu-smollm2-135m-interference.json

Colocated is one process with two threads that prefills a prompt as soon as it arrives and otherwise steps the running
streams in turn. Split is a prefill and a decode worker on two Ray nodes, one thread each. Both see the same prompts.
"""

import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MODEL, STREAMS, SHORT, LONG = "smollm2-135m", 2, 32, 512
STREAM_TOKENS, ARRIVES_AFTER, LONG_TOKENS, REPEATS = 64, 16, 8, 3
PATIENCE_SECONDS = 900.0


def draw_prompts(vocab: int, seed: int) -> tuple[list[list[int]], list[int]]:
    import numpy as np

    generator = np.random.default_rng(seed)
    short = [generator.integers(vocab, size=SHORT).tolist() for _ in range(STREAMS)]
    return short, generator.integers(vocab, size=LONG).tolist()


def serve_colocated(model, seed: int) -> dict:
    """Everything in this process, in turn; an arrived prompt goes first."""
    import numpy as np

    short, long = draw_prompts(model.config.vocab, seed)
    sessions, tokens, moments = [], [], []
    for prompt in short:
        sessions.append(model.start(len(prompt) + STREAM_TOKENS))
        tokens.append(int(np.argmax(sessions[-1].prefill(prompt))))
        moments.append([time.perf_counter()])
    arrived, limits = None, [STREAM_TOKENS] * STREAMS
    while any(len(times) < limit for times, limit in zip(moments, limits, strict=True)):
        if arrived is None and all(len(times) >= ARRIVES_AFTER for times in moments):
            arrived = time.perf_counter()
            sessions.append(model.start(LONG + LONG_TOKENS))
            tokens.append(int(np.argmax(sessions[-1].prefill(long))))
            moments.append([time.perf_counter()])
            limits.append(LONG_TOKENS)
        for i, session in enumerate(sessions):
            if len(moments[i]) < limits[i]:
                tokens[i] = int(np.argmax(session.decode_step(tokens[i])))
                moments[i].append(time.perf_counter())
    return as_row("colocated", arrived, moments)


def serve_split(router, seed: int) -> dict:
    """The same load through the router; each client's clock is this process's."""
    short, long = draw_prompts(router.config.vocab, seed)
    moments = [[] for _ in range(STREAMS + 1)]
    enough = threading.Barrier(STREAMS + 1)

    def read(i: int, prompt: list[int], new_tokens: int) -> None:
        for _ in router.stream(prompt, new_tokens, deadline_seconds=PATIENCE_SECONDS):
            moments[i].append(time.perf_counter())
            if len(moments[i]) == ARRIVES_AFTER and i < STREAMS:
                enough.wait()

    clients = [threading.Thread(target=read, args=(i, prompt, STREAM_TOKENS)) for i, prompt in enumerate(short)]
    for client in clients:
        client.start()
    enough.wait()
    arrived = time.perf_counter()
    read(STREAMS, long, LONG_TOKENS)
    for client in clients:
        client.join()
    return as_row("split", arrived, moments)


def as_row(serving: str, arrived: float, moments: list[list[float]]) -> dict:
    return {
        "serving": serving,
        "arrived_seconds": arrived - moments[0][0],
        "token_seconds": [[moment - moments[0][0] for moment in times] for times in moments[:STREAMS]],
        "long_ttft_seconds": moments[STREAMS][0] - arrived,
        "long_token_seconds": [moment - moments[0][0] for moment in moments[STREAMS]],
    }


def worst_gap(row: dict) -> float:
    return max(later - earlier for times in row["token_seconds"] for earlier, later in pairwise(times))


def endless(model):
    """The model without its end tokens, so that every answer has the length that was asked for."""
    from dataclasses import replace

    import tinyinfer

    config = replace(model.config, eos_ids=())
    return tinyinfer.LanguageModel(config, model.weights, model.tokenizer, model.decoder.ops, model.backend)


def colocated_process() -> None:
    """Serve each seed that comes in a line, answer with a row in a line."""
    import tinyinfer

    model = endless(tinyinfer.load(MODEL))
    for line in sys.stdin:
        print(json.dumps(serve_colocated(model, int(line))), flush=True)


def main(path: Path) -> None:
    os.environ |= dict.fromkeys(THREADS, "1")  # inherited by the workers
    from tinyinfer.performance.records import write_record
    from tinyinfer.serving.disaggregate import open_engine

    two = os.environ | dict.fromkeys(THREADS, "2")
    command = [sys.executable, __file__, "--colocated"]
    colocated = subprocess.Popen(command, env=two, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rows = []
    with open_engine(MODEL, slots=4096) as router:
        for repeat in range(-1, REPEATS):  # interleaved, after one round to warm up
            colocated.stdin.write(f"{repeat + 1}\n")
            colocated.stdin.flush()
            pair = [json.loads(colocated.stdout.readline()), serve_split(router, repeat + 1)]
            if repeat >= 0:
                rows += [row | {"repeat": repeat} for row in pair]
    colocated.stdin.close()
    colocated.wait()
    write_record(
        path,
        kind="interference",
        protocol=(
            f"{MODEL}, float32, greedy, random tokens; {STREAMS} streams of {SHORT} + {STREAM_TOKENS} tokens decode; "
            f"when each has {ARRIVES_AFTER} tokens, a prompt of {LONG} arrives that asks for {LONG_TOKENS}; "
            "colocated: one process, two threads, a prompt is prefilled at once and whole; split: a prefill and a "
            f"decode worker, one thread each, on Ray nodes of one machine; {REPEATS} "
            "rounds of both, interleaved, after one to warm up"
        ),
        rows=rows,
        packages=("ray",),
        model=MODEL,
    )
    for row in rows:
        print(
            f"{row['serving']:10} longest gap {worst_gap(row) * 1e3:7.0f} ms, TTFT of the long prompt "
            f"{row['long_ttft_seconds'] * 1e3:7.0f} ms"
        )


if __name__ == "__main__":
    if sys.argv[1] == "--colocated":
        colocated_process()
    else:
        main(Path(sys.argv[1]))
