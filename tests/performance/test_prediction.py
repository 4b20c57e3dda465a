"""TTFT and TPOT from shapes and peaks: by hand, against what others measured, and when decode is compute-bound."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import decode_cost, prefill_cost
from tinyinfer.performance.hardware import HARDWARE, Hardware, find_hardware
from tinyinfer.performance.memory import memory_needed
from tinyinfer.performance.prediction import (
    critical_batch,
    critical_context,
    predict_decode,
    predict_phases,
    predict_prefill,
)
from tinyinfer.performance.shapes import find_shape

ORACLES = Path(__file__).parent.parent / "oracles"
TOY = ModelConfig("toy", layers=3, model_dim=14, heads=4, kv_heads=2, head_dim=6, ffn_dim=17, vocab=23, max_context=99)
H200, LLAMA = find_hardware("H200"), find_shape("llama-3-8b")


def read_oracle(name):
    with open(ORACLES / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# By hand -------------------------------------------------------------------------------------------------------------


def test_a_decode_step_of_llama_3_8b_on_an_h200_by_hand():
    # 15,009,849,344 bytes of weights, 4,096 rows read and one written of 131,072 bytes, at 4.8e12 bytes/s.
    step = predict_decode(LLAMA, H200, context=4096)
    assert step.work.bytes_moved == 15_009_849_344 + 4097 * 131_072
    assert step.seconds == pytest.approx(3.2389e-3, rel=1e-4)
    assert (step.limits.bound, step.tokens, step.context) == ("memory", 1, 4096)
    assert step.tokens_per_second == pytest.approx(308.7, abs=0.1)


def test_a_prefill_of_llama_3_8b_on_an_h200_by_hand():
    # 2,048 tokens x 2 x 218,103,808 x 32 layers + one row of logits + attention over 2,098,176 pairs of 524,288 FLOPs.
    prefill = predict_prefill(LLAMA, H200, prompt=2048, batch=3)
    flops = 2048 * 2 * 218_103_808 * 32 + 2 * 128_256 * 4096 + 2_098_176 * 524_288
    assert prefill.work.flops == 3 * flops
    assert prefill.seconds == 3 * flops / 989.4e12
    assert (prefill.limits.bound, prefill.tokens, prefill.context) == ("compute", 3 * 2048, 2048)


def test_a_row_has_exactly_the_promised_fields():
    step = predict_decode(TOY, H200, context=5, batch=7)
    assert step.as_row() == {
        "phase": "decode",
        "batch": 7,
        "tokens": 7,
        "context": 5,
        "flops": decode_cost(TOY, 5, 7).flops,
        "bytes_moved": decode_cost(TOY, 5, 7).bytes_moved,
        "launches": 28,
        "intensity": decode_cost(TOY, 5, 7).intensity,
        "bound": "memory",
        "seconds": step.seconds,
        "memory_bytes": memory_needed(TOY, 7, 5),
        "fits": True,
    }


def test_phases_are_the_prefills_and_then_the_steps():
    rows = predict_phases(TOY, H200, prompt=11, context=13, batches=[2, 5], dtype="fp8", weight_dtype="int4")
    assert [(row.phase, row.batch, row.tokens, row.context) for row in rows] == [
        ("prefill", 2, 22, 11),
        ("prefill", 5, 55, 11),
        ("decode", 2, 2, 13),
        ("decode", 5, 5, 13),
    ]
    assert rows[0] == predict_prefill(TOY, H200, 11, 2, "fp8", "int4")
    assert rows[3] == predict_decode(TOY, H200, 13, 5, "fp8", "int4")


def test_dtypes_of_products_weights_and_cache_are_three_things():
    step = predict_decode(LLAMA, H200, 4096, 3, "bf16", weight_dtype="int4", kv_dtype="fp8")
    assert step.work == decode_cost(LLAMA, 4096, 3, weight_bytes=0.5, kv_bytes=1)
    assert step.limits == step.work.limits_on(H200, "bf16")
    assert step.memory_bytes == memory_needed(LLAMA, 3, 4096, 0.5, 1)
    prefill = predict_prefill(LLAMA, H200, 100, 3, "fp8", kv_dtype="bf16")
    assert prefill.work == prefill_cost(LLAMA, 100, batch=3, weight_bytes=1, kv_bytes=2)
    assert prefill.limits.compute_seconds == prefill.work.flops / 1979e12


def test_a_measured_floor_may_make_launches_the_limit_and_fused_products_help():
    slow_start = replace(H200, launch_floor_seconds=20e-6)
    step, fused = (predict_decode(LLAMA, slow_start, 128, fused=fused) for fused in (False, True))
    assert step.limits.bound == "launch"
    assert step.seconds - fused.seconds == pytest.approx(32 * 3 * 20e-6)
    assert predict_prefill(LLAMA, slow_start, 8192).limits.bound == "compute"


def test_a_device_without_flops_is_bound_by_memory_and_one_without_memory_size_fits_nobody_knows():
    apple = find_hardware("M1 Pro")
    prefill = predict_prefill(LLAMA, apple, 4096)
    assert prefill.limits.bound == "memory"
    assert prefill.seconds == prefill.work.bytes_moved / 200e9
    assert prefill.fits is None


# What others measured ------------------------------------------------------------------------------------------------

OUR_DEVICES = {
    "RTX 4090": ("RTX 4090", "fp16"),
    "M1 Pro": ("Apple M1 Pro", "fp16"),
    "M3 Pro": ("Apple M3 Pro", "fp16"),
    "A100-80GB 330 W": ("A100 80GB SXM", "bf16"),
    "A100-80GB 330W": ("A100 80GB SXM", "bf16"),
    "A100-80GB": ("A100 80GB SXM", "fp16"),
    "H100 FP8": ("H100 SXM", "fp8"),
    "L40S FP8": ("L40S", "fp8"),
}
ONE_DEVICE = [row for row in read_oracle("predicted_vs_measured.csv") if row["n_devices"] == "1"]


@pytest.mark.parametrize(
    "row", ONE_DEVICE, ids=lambda row: f"{row['phase']}-{row['device']}-{row['context_or_prompt']}"
)
def test_no_measurement_on_one_device_beats_the_prediction_for_it(row):
    """Convention: ours in full (exact causal, last row's logits, weights, KV rows); the table's bound is one limit."""
    device, dtype = OUR_DEVICES[row["device"]]
    predict = predict_prefill if row["phase"] == "prefill" else predict_decode
    predicted = predict(find_shape(row["model"]), HARDWARE[device], int(row["context_or_prompt"]), 1, dtype)
    assert float(row["measured_tok_per_s"]) < predicted.tokens_per_second
    assert predicted.seconds * 1e3 >= float(row["bound_ms"]) * (1 - 2e-3)
    # The one short prompt lies below the ridge: its weights take longer to read than to multiply.
    short = (row["device"], row["context_or_prompt"]) == ("A100-80GB", "128")
    assert predicted.limits.bound == ("memory" if row["phase"] == "decode" or short else "compute")


GPT_FAST = [row for row in read_oracle("gpt_fast.csv") if row["gpus"] == "1" and row["device"] in OUR_DEVICES]
WEIGHTS = {"bf16": "bf16", "int8": "int8", "int4 g32": "int4"}


@pytest.mark.parametrize("row", GPT_FAST, ids=lambda row: f"{row['model']}-{row['weights']}-{row['tok_per_s']}")
def test_no_speed_that_gpt_fast_measured_beats_the_prediction(row):
    """Convention: batch 1, weights alone in fewer bits, KV cache in bf16; a context of 105, the mean of its runs."""
    device, dtype = OUR_DEVICES[row["device"]]
    weight_dtype = WEIGHTS[row["weights"]]
    step = predict_decode(find_shape(row["model"]), HARDWARE[device], 105, 1, dtype, weight_dtype)
    assert 0.3 < float(row["tok_per_s"]) / step.tokens_per_second < 1


# When decode is compute-bound ----------------------------------------------------------------------------------------


def test_the_critical_batch_of_llama_3_8b_on_an_h200_is_267_at_128_and_none_at_4096():
    """By hand, with ridge R = 989.4e12 / 4.8e12: batch > W R / (F - K R).

    W = 15,009,849,344 bytes (no embedding table), F = 15,009,316,864 + 128 x 524,288 FLOPs for a sequence, K =
    (128 + 1) x 131,072 bytes: 128 rows read and one written. The quotient is 266.9.
    """
    ridge = 989.4e12 / 4.8e12
    by_hand = 15_009_849_344 * ridge / (15_009_316_864 + 128 * 524_288 - 129 * 131_072 * ridge)
    assert by_hand == pytest.approx(266.9, abs=0.05)
    assert critical_batch(LLAMA, H200, 128, "bf16") == math.floor(by_hand) + 1 == 267
    assert critical_batch(LLAMA, H200, 4096, "bf16") is None


def test_beyond_565_keys_no_batch_makes_llama_3_8b_compute_bound_on_an_h200():
    assert critical_context(LLAMA, H200) == 565
    assert critical_batch(LLAMA, H200, 565) > 100_000
    assert critical_batch(LLAMA, H200, 566) is None
    # Half the bytes a row, more than twice as far.
    assert critical_context(LLAMA, H200, kv_dtype="fp8") > 2 * 565


def test_a_ridge_below_the_group_leaves_every_context_a_critical_batch():
    # Four query heads share a row: reading 2 x 2 bytes of K and V serves 4 x 4 FLOPs, an intensity of 4.
    low = replace(H200, flops_per_second={"bf16": 3.9 * 4.8e12})
    assert critical_context(LLAMA, low) == math.inf
    assert critical_batch(LLAMA, low, 10**6) is not None
    assert critical_context(LLAMA, replace(low, flops_per_second={"bf16": 4.1 * 4.8e12})) < math.inf


def test_a_sliding_window_ends_the_growth():
    assert critical_context(replace(LLAMA, sliding_window=565), H200) == math.inf
    assert critical_context(replace(LLAMA, sliding_window=566), H200) == 565
    windowed = replace(LLAMA, sliding_window=128)
    assert critical_batch(windowed, H200, 4096) == critical_batch(LLAMA, H200, 128)


def test_without_published_flops_nothing_is_compute_bound():
    assert critical_batch(LLAMA, find_hardware("M1 Pro"), 1) is None
    assert critical_context(LLAMA, find_hardware("M1 Pro")) == 0


def test_a_launch_floor_raises_the_critical_batch():
    slow_start = replace(H200, launch_floor_seconds=1e-4)
    batch = critical_batch(LLAMA, slow_start, 16)
    assert batch > critical_batch(LLAMA, H200, 16)
    assert predict_decode(LLAMA, slow_start, 16, batch).limits.bound == "compute"
    assert predict_decode(LLAMA, slow_start, 16, batch - 1).limits.bound == "launch"


DEVICES = st.builds(
    lambda ridge, bandwidth: Hardware("drawn", {"bf16": ridge * bandwidth}, bandwidth, None, "drawn"),
    st.floats(0.5, 1000),
    st.floats(1e9, 1e13),
)
MODELS = st.sampled_from([TOY, LLAMA, find_shape("smollm2-135m"), find_shape("llama-2-7b"), find_shape("qwen2.5-72b")])


@given(MODELS, DEVICES, st.integers(1, 5000))
def test_decode_is_compute_bound_from_the_critical_batch_on_and_not_before(config, device, context):
    batch = critical_batch(config, device, context)

    def bound(batch):
        return predict_decode(config, device, context, batch).limits.bound

    if batch is None:
        assert bound(10**9) == "memory"
        assert context > critical_context(config, device)
    else:
        assert bound(batch) == bound(2 * batch) == "compute"
        assert batch == 1 or bound(batch - 1) == "memory"
        assert context <= critical_context(config, device)


# Wrong input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict_prefill(TOY, H200, 0), "new_tokens is 0"),
        (lambda: predict_decode(TOY, H200, 5, batch=0), "batch is 0"),
        (lambda: predict_decode(TOY, H200, 5, dtype="bf17"), "dtype 'bf17' is not known; known: fp32, tf32, bf16"),
        (lambda: predict_decode(TOY, H200, 5, kv_dtype="int3"), "dtype 'int3' is not known"),
        (lambda: predict_decode(TOY, find_hardware("V100 SXM2"), 5), "no bf16 peak is known for V100 SXM2 32GB"),
        (lambda: critical_batch(TOY, find_hardware("V100 SXM2"), 5), "known: fp32, fp16"),
        (lambda: critical_batch(TOY, H200, 0), "context is 0"),
        (lambda: critical_context(TOY, H200, "int4"), "no int4 peak is known for H200 SXM"),
    ],
)
def test_wrong_input_is_refused_by_name(call, message):
    with pytest.raises(BadInput, match=message):
        call()
