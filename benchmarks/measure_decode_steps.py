"""What each way to run a decode step faster buys: SmolLM2-135M at batch 1, all ways interleaved in one run.

    python benchmarks/measure_decode_steps.py [RECORD.json] [--device cuda] [--dtype bfloat16] [--shape NAME]

Each row predicts first: max(compute, memory) + kernels x floor, with kernels counted (but for what is
compiled) and ceilings measured apart.
"""

import argparse
import statistics
from contextlib import nullcontext
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import tinyinfer
from tinyinfer.loading.checkpoint import read_checkpoint
from tinyinfer.loading.synthetic import RandomWeights
from tinyinfer.model import torch_ops, torch_step
from tinyinfer.performance.ceilings import describe_device, dtype_of, measure_hardware
from tinyinfer.performance.counting import count_kernels
from tinyinfer.performance.measure import pretend_past, time_decode
from tinyinfer.performance.prediction import predict_decode
from tinyinfer.performance.records import write_record
from tinyinfer.performance.shapes import find_shape

CONTEXT, CAPACITY, STEPS, ROUNDS = 512, 1024, 16, 9


def with_gradients(ops: SimpleNamespace) -> SimpleNamespace:
    """The same operations with PyTorch's bookkeeping for gradients left on."""
    ops = copy(ops)
    ops.inference_mode = nullcontext
    return ops


def same(step):
    """A step that is not accelerated, in the static-shape pass that acceleration needs."""
    return step


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("record", nargs="?", type=Path)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--dtype", default="float32")
    arguments.add_argument("--shape")
    arguments.add_argument("--commit")
    given = arguments.parse_args()
    ops = torch_ops.on(given.device, given.dtype)
    if given.shape:
        config = find_shape(given.shape)
        weights = RandomWeights(config, ops)
    else:
        checkpoint = read_checkpoint("smollm2-135m")
        config, weights = checkpoint.config, checkpoint.weights
    ways = {
        "eager": (with_gradients(ops), False, None),
        "inference mode": (ops, False, None),
        "fused weights": (ops, True, None),
        "static shapes": (ops, True, same),
        "compiled": (ops, True, torch_step.compiled),
    }
    if ops.device.type == "cuda":
        ways["CUDA graph"] = (ops, True, torch_step.captured)
    hardware = measure_hardware("torch", given.device, (dtype_of(ops),))
    sessions, rows = {}, []
    for name, (own_ops, fused, accelerate) in ways.items():
        model = tinyinfer.LanguageModel(config, weights, None, own_ops, "torch", fused, accelerate)
        sessions[name] = session = model.start(CAPACITY, batch=1)
        pretend_past(session, CONTEXT)
        eager_step = tinyinfer.LanguageModel(config, weights, None, own_ops, "torch", fused).decoder.step
        attended = CAPACITY if accelerate else CONTEXT + STEPS // 2
        prediction = predict_decode(config, hardware, attended, 1, dtype_of(ops), fused=fused)
        products = prediction.work.launches
        if accelerate in (None, same):
            session.step = eager_step
            kernels = count_kernels(lambda session=session: session.decode_step([1]))
        else:  # what is compiled is not counted: one start for each product stands for it; a graph is started once
            kernels = 1 if accelerate is torch_step.captured else products
        limits = replace(prediction.work, launches=kernels).limits_on(hardware, dtype_of(ops))
        rows.append({"way": name, "kernels": kernels, "attended": attended, "limits": asdict(limits)})
        rows[-1] |= {"predicted_seconds": limits.seconds, "samples_seconds": []}
    for round_number in range(ROUNDS + 1):
        for row in rows:
            session = sessions[row["way"]]
            session.set_lengths([CONTEXT])
            gaps = time_decode(session, [1], STEPS)
            if round_number:  # the first round warms up, and compiles
                row["samples_seconds"].extend(gaps)
    logits = {}
    for name, session in sessions.items():
        session.set_lengths([CONTEXT])
        logits[name] = session.decode_step([7])[0]
    for row in rows:
        gap = np.abs(logits[row["way"]] - logits["eager"]).max()
        row["largest_gap"] = float(gap / np.abs(logits["eager"]).max())
        seconds = statistics.median(row["samples_seconds"])
        print(
            f"{row['way']:16}{row['kernels']:6} kernels, predicted {row['predicted_seconds'] * 1e3:7.3f} ms, "
            f"measured {seconds * 1e3:7.3f} ms, logits differ by {row['largest_gap']:.1e} of the largest"
        )
    if given.record is not None:
        write_record(
            given.record,
            kind="decode steps",
            protocol=(
                f"batch 1, {CONTEXT} random rows of past, room for {CAPACITY}; {ROUNDS} rounds of {STEPS} greedy steps "
                "after one to warm up, the ways interleaved; clock read after the logits reached the host"
            ),
            rows=rows,
            packages=("torch",),
            commit=given.commit,
            machine=describe_device(ops),
            model=config.name,
            weights="random" if given.shape else "trained",
            backend="torch",
            dtype=dtype_of(ops),
            ceilings=asdict(hardware),
        )


if __name__ == "__main__":
    main()
