"""Measure both phases of a model beside what was predicted for them, as a record.

Each row carries two predictions, made without the model: the *roof*, from this machine's plain ceilings
(`ceilings.py`), and the *parts*, the sum of every operation of the pass timed alone (`parts.py`).
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tinyinfer.performance.ceilings import describe_device, dtype_of, measure_hardware
from tinyinfer.performance.hardware import Hardware
from tinyinfer.performance.measure import pretend_past, time_decode, time_prefill
from tinyinfer.performance.metrics import percentile
from tinyinfer.performance.parts import time_parts
from tinyinfer.performance.prediction import predict_decode, predict_prefill

LONGEST_PASS = 4096  # tokens in one prefill: what is beyond is left out, not shortened


def run_bench(
    model: Any,
    prompts: Sequence[int],
    batches: Sequence[int],
    new_tokens: int,
    repeats: int,
    published: Hardware | None = None,
    done_one: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure the ceilings, then every phase, batch and prompt length: the arguments of `records.write_record`."""
    ops = model.decoder.ops
    dtype, device = dtype_of(ops), str(getattr(ops, "device", "cpu"))
    ceilings = measure_hardware(model.backend, device.removesuffix(":0"), (dtype,))
    rows = []
    for phase in ("prefill", "decode"):
        for batch in batches:
            for prompt in prompts:
                if phase == "decode" or batch * prompt <= LONGEST_PASS:
                    rows.append(measure_phase(model, ceilings, dtype, phase, batch, prompt, new_tokens, repeats))
                    rows[-1] |= achieved(rows[-1], ceilings, dtype)
                    if published is not None:
                        rows[-1]["published"] = achieved(rows[-1], published, dtype)
                done_one()
    return {
        "kind": "bench",
        "protocol": (
            f"random token ids and, as the past of a decode step, random K and V rows; {repeats} runs after one to "
            f"warm up; a decode run is {new_tokens} greedy steps; clock read after the logits reached the host; "
            "parts: every operation of the pass alone on operands outside the caches"
        ),
        "packages": ("torch",) if model.backend == "torch" else (),
        "machine": describe_device(ops),
        "model": model.config.name,
        "weights": "random" if model.tokenizer is None else "trained",
        "backend": model.backend,
        "decode": model.decode,
        "dtype": dtype,
        "ceilings": asdict(ceilings),
        "published": None if published is None else published.name,
        "rows": rows,
    }


def measure_phase(
    model: Any,
    hardware: Hardware,
    dtype: str,
    phase: str,
    batch: int,
    tokens: int,
    new_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """One row: predictions, then raw seconds of `repeats` runs after one to warm up.

    A decode row goes on from `tokens` random rows of past per sequence, `new_tokens` steps; its prediction is that of
    the step in the middle. Parts are the operations that the wiring asks for, also where a compiler joins some.
    """
    if phase == "prefill":
        run, samples = _prefill(model, batch, tokens, repeats)
        prediction = predict_prefill(model.config, hardware, tokens, batch, dtype, fused=model.fused)
    else:
        run, samples = _decode(model, batch, tokens, new_tokens, repeats)
        middle = tokens + (new_tokens + 1) // 2
        prediction = predict_decode(model.config, hardware, middle, batch, dtype, fused=model.fused)
    row = prediction.as_row()
    row |= {"prompt": tokens, "roof_seconds": row.pop("seconds")}
    parts: dict[str, float] = {}
    for part in time_parts(model, run):
        parts[part.operation] = parts.get(part.operation, 0.0) + part.seconds
    row |= {"parts_seconds": sum(parts.values()), "parts": parts}
    return row | {"samples_seconds": samples()}


def _prefill(model: Any, batch: int, tokens: int, repeats: int) -> tuple[Callable, Callable]:
    generator = np.random.default_rng(tokens)

    def prompts():
        return [generator.integers(model.config.vocab, size=tokens).tolist() for _ in range(batch)]

    def run(twin):
        twin.start(tokens, batch=batch).prefill(prompts())

    def samples():
        return [time_prefill(model, prompts()) for _ in range(repeats + 1)][1:]

    return run, samples


def _decode(model: Any, batch: int, tokens: int, new_tokens: int, repeats: int) -> tuple[Callable, Callable]:
    def start(anyone):
        session = anyone.start(tokens + new_tokens, batch=batch)
        pretend_past(session, tokens)
        return session

    def run(twin):
        session = start(twin)
        session.set_lengths([tokens + new_tokens // 2] * batch)
        session.decode_step([1] * batch)

    def samples():
        session, gaps = start(model), []
        for _ in range(repeats + 1):
            session.set_lengths([tokens] * batch)
            gaps.append(time_decode(session, [1] * batch, new_tokens))
        return [gap for each in gaps[1:] for gap in each]

    return run, samples


def measured(row: dict[str, Any]) -> float:
    """The measured seconds of a row, a median: TTFT of a prefill, TPOT of a decode step."""
    return statistics.median(row["samples_seconds"])


def achieved(row: dict[str, Any], hardware: Hardware, dtype: str) -> dict[str, float | None]:
    """MFU and MBU: achieved FLOP/s and bytes/s as shares of `hardware`'s; an MFU of None where no peak is known."""
    peak = hardware.peak(dtype)
    return {
        "mfu": None if peak is None else row["flops"] / measured(row) / peak,
        "mbu": row["bytes_moved"] / measured(row) / hardware.bytes_per_second,
    }


def format_bench(result: dict[str, Any]) -> str:
    """A table for people: measured beside predicted, with both residuals."""
    ceilings = result["ceilings"]
    peak = ceilings["flops_per_second"][result["dtype"]]
    lines = [
        f"{result['model']} ({result['weights']} weights), {result['backend']} {result['dtype']} {result['decode']} on "
        f"{result['machine']['device']}: measured ceilings {peak / 1e9:,.0f} GFLOP/s, "
        f"{ceilings['bytes_per_second'] / 1e9:,.1f} GB/s, launch floor {ceilings['launch_floor_seconds'] * 1e6:.2f} us",
        "",
        f"{'phase':8}{'batch':>6}{'prompt':>8}{'median':>12}{'p90':>12}{'parts':>12}{'x parts':>9}{'roof':>12}"
        f"{'x roof':>8}{'MFU':>7}{'MBU':>7}",
    ]
    for row in result["rows"]:
        seconds, parts, roof = measured(row), row["parts_seconds"], row["roof_seconds"]
        cells = [f"{seconds * 1e3:.2f} ms", f"{percentile(row['samples_seconds'], 90) * 1e3:.2f} ms"]
        cells += [f"{parts * 1e3:.2f} ms", f"{seconds / parts:.2f}"]
        cells += [f"{roof * 1e3:.2f} ms", f"{seconds / roof:.2f}", f"{row['mfu']:.0%}", f"{row['mbu']:.0%}"]
        widths = (12, 12, 12, 9, 12, 8, 7, 7)
        lines.append(
            f"{row['phase']:8}{row['batch']:>6}{row['prompt']:>8}"
            + "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        )
    lines += ["", "x parts and x roof are measured over predicted. MFU and MBU are shares of the measured ceilings."]
    return "\n".join(lines)


def record_path(folder: Path, result: dict[str, Any]) -> Path:
    """Where a record of this run goes: <device>-<model>-<backend>-<dtype>-<decode>-<date>.json."""
    device = result["machine"]["device"].lower().replace(" ", "-")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    names = (device, result["model"], result["backend"], result["dtype"], result["decode"], date)
    return folder / ("-".join(names) + ".json")
