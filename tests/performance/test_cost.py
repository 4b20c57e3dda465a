"""FLOPs, bytes and launches by counting, against hand counts and against what other projects count and measure.

Each oracle has a convention of its own; each test says which.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance import cost
from tinyinfer.performance.cost import (
    ONCE_PER_PASS,
    Work,
    cache_bytes_written,
    cached_generation_cost,
    causal_pairs,
    decode_cost,
    decode_operations,
    kv_projections,
    naive_generation_cost,
    parameters,
    prefill_cost,
    prefill_operations,
    score_pairs,
    weight_bytes_read,
    whole_pass,
)
from tinyinfer.performance.hardware import find_hardware
from tinyinfer.performance.llm_viewer import llm_viewer_operations
from tinyinfer.performance.shapes import SHAPES, find_shape

ORACLES = Path(__file__).parent.parent / "oracles"


def read_oracle(name):
    with open(ORACLES / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# GPT-2 and OPT have LayerNorms, biases and an ungated MLP: only their matrix products and KV rows are counted here.
UNGATED = {
    "GPT-2 small (124M)": ModelConfig("gpt-2", 12, 768, 12, 12, 64, 3072, 50_257, 1024, tied_head=True),
    "GPT-2 XL (1.5B)": ModelConfig("gpt-2-xl", 48, 1600, 25, 25, 64, 6400, 50_257, 1024, tied_head=True),
    "OPT-13B": ModelConfig("opt-13b", 40, 5120, 40, 40, 128, 20_480, 50_272, 2048),
}
TOY = ModelConfig("toy", layers=3, model_dim=14, heads=4, kv_heads=2, head_dim=6, ffn_dim=17, vocab=23, max_context=99)
LLAMA_2_7B = find_shape("llama-2-7b")


def shape_of(model):
    return UNGATED.get(model) or find_shape(model)


def without_gate(model, operations):
    return {name: work for name, work in operations.items() if not (name == "gate" and model in UNGATED)}


# By hand -------------------------------------------------------------------------------------------------------------


def test_each_operation_of_a_toy_decode_step_equals_the_hand_count():
    operations = decode_operations(TOY, context=5, batch=11, weight_bytes=2, kv_bytes=1)
    assert operations == {
        "q_proj": Work(2 * 11 * 24 * 14, 24 * 14 * 2, 1),
        "k_proj": Work(2 * 11 * 12 * 14, 12 * 14 * 2 + 11 * 12, 1),
        "v_proj": Work(2 * 11 * 12 * 14, 12 * 14 * 2 + 11 * 12, 1),
        "scores": Work(2 * 11 * 5 * 24, 11 * 5 * 12, 1),
        "weighted_sum": Work(2 * 11 * 5 * 24, 11 * 5 * 12, 1),
        "out_proj": Work(2 * 11 * 14 * 24, 14 * 24 * 2, 1),
        "gate": Work(2 * 11 * 17 * 14, 17 * 14 * 2, 1),
        "up": Work(2 * 11 * 17 * 14, 17 * 14 * 2, 1),
        "down": Work(2 * 11 * 14 * 17, 14 * 17 * 2, 1),
        "norms": Work(0, 2 * 14 * 2, 0),
        "final_norm": Work(0, 14 * 2, 0),
        "lm_head": Work(2 * 11 * 23 * 14, 23 * 14 * 2, 1),
    }


def test_a_prefill_is_its_layers_its_last_norm_and_its_head():
    operations = prefill_operations(TOY, new_tokens=7)
    layer = sum((work for name, work in operations.items() if name not in ONCE_PER_PASS), Work())
    assert prefill_cost(TOY, 7) == layer * 3 + operations["final_norm"] + operations["lm_head"]
    assert prefill_cost(TOY, 7).launches == 3 * 9 + 1
    assert prefill_cost(TOY, 7).bytes_moved == weight_bytes_read(TOY) + 7 * TOY.kv_bytes_per_token()
    assert prefill_cost(TOY, 7, past=4).bytes_moved == weight_bytes_read(TOY) + (7 + 4) * TOY.kv_bytes_per_token()


def test_a_decode_step_reads_every_weight_once_for_the_whole_batch_and_the_cache_once_for_each_sequence():
    for batch in (1, 13):
        moved = decode_cost(TOY, context=5, batch=batch).bytes_moved
        assert moved == weight_bytes_read(TOY) + batch * (5 + 1) * TOY.kv_bytes_per_token()


def test_fused_products_start_six_kernels_in_a_layer_and_do_the_same_work():
    for apart, fused in (
        (decode_cost(TOY, 5, batch=3), decode_cost(TOY, 5, batch=3, fused=True)),
        (prefill_cost(TOY, 7, past=4), prefill_cost(TOY, 7, past=4, fused=True)),
    ):
        assert (apart.launches, fused.launches) == (3 * 9 + 1, 3 * 6 + 1)
        assert replace(fused, launches=apart.launches) == apart
    starting = {name for name, work in decode_operations(TOY, 5, fused=True).items() if work.launches}
    assert starting == {"q_proj", "scores", "weighted_sum", "out_proj", "gate", "down", "lm_head"}


def test_biases_and_query_key_norms_are_bytes_and_not_flops():
    rich = replace(TOY, qkv_bias=True, output_bias=True, qk_norm=True)
    extra = 3 * (24 + 12 + 12 + 14 + 6 + 6)
    assert parameters(rich) - parameters(TOY) == extra
    assert decode_cost(rich, 5).bytes_moved - decode_cost(TOY, 5).bytes_moved == 2 * extra
    assert decode_cost(rich, 5).flops == decode_cost(TOY, 5).flops


def test_a_sliding_window_bounds_the_keys_that_are_scored_and_read():
    assert causal_pairs(5, past=0, window=3) == 1 + 2 + 3 + 3 + 3
    windowed = replace(TOY, sliding_window=3)
    assert decode_cost(windowed, context=50) == decode_cost(TOY, context=3)
    assert prefill_cost(windowed, 1, past=50) == prefill_cost(TOY, 1, past=2)


# The cases that other engines got wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected", "fault"),
    [
        ("qwen3-0.6b", 114_688, 57_344),  # fault: head size guessed as model_dim / heads
        ("llama-3-8b", 131_072, 524_288),  # fault: query heads counted
        ("llama-2-7b", 524_288, None),
        ("llama-3-70b", 327_680, 2_621_440),
    ],
)
def test_case_14_kv_bytes_per_token_count_key_value_heads_of_the_stated_size(model, expected, fault):
    config = find_shape(model)
    assert config.kv_bytes_per_token() == expected != fault
    step = decode_cost(config, context=101).bytes_moved - decode_cost(config, context=100).bytes_moved
    assert step == expected


def test_case_14_gpt_2_keeps_73728_bytes_per_token_in_fp32():
    assert UNGATED["GPT-2 small (124M)"].kv_bytes_per_token(4) == 73_728


def test_case_15_a_cache_of_32768_tokens_is_16_gib_which_is_17_gb():
    cache_bytes = 32_768 * LLAMA_2_7B.kv_bytes_per_token()
    assert cache_bytes == 16 * 2**30
    assert cache_bytes / 1e9 == pytest.approx(17.18, abs=0.005)


def test_case_16_a_cache_turns_squares_into_lines_and_cubes_into_squares():
    assert kv_projections(prompt=1, new_tokens=100, cached=False) == 5_050
    assert kv_projections(prompt=1, new_tokens=100, cached=True) == 100
    assert score_pairs(prompt=1, new_tokens=100, cached=False) == 171_700
    assert score_pairs(prompt=1, new_tokens=100, cached=True) == 5_050
    # A cached step costs O(n), never O(1): each further key costs as much again.
    steps = [decode_cost(TOY, context).flops for context in (10, 20, 30)]
    assert steps[2] - steps[1] == steps[1] - steps[0] > 0


def test_case_17_a_table_that_is_looked_up_costs_no_bytes_and_a_tied_one_is_read_once():
    tied = replace(TOY, tied_head=True)
    assert parameters(TOY) - parameters(tied) == 23 * 14
    assert cost.weight_bytes_read(TOY, 2) == cost.weight_bytes_read(tied, 2) == 2 * parameters(tied)
    assert cost.weight_bytes_read(TOY, 1) == parameters(TOY) - 23 * 14


def test_naive_and_cached_generation_cost_the_sum_of_their_passes():
    # 5 prompt tokens, 4 new ones: passes over 5, 6, 7, 8 tokens; or one over 5, then one token against 6, 7, 8 keys.
    naive = naive_generation_cost(TOY, prompt=5, new_tokens=4)
    assert naive.flops == sum(prefill_cost(TOY, length).flops for length in (5, 6, 7, 8))
    assert naive.bytes_moved == 4 * weight_bytes_read(TOY)
    cached = cached_generation_cost(TOY, prompt=5, new_tokens=4)
    assert cached == sum((decode_cost(TOY, context) for context in (6, 7, 8)), prefill_cost(TOY, 5))
    assert naive.launches == cached.launches


def test_a_concatenating_cache_writes_the_old_rows_again_at_every_step():
    row = TOY.kv_bytes_per_token()
    assert cache_bytes_written(TOY, 5, 4, preallocated=True) == (5 + 1 + 1 + 1) * row
    assert cache_bytes_written(TOY, 5, 4, preallocated=False) == (5 + 6 + 7 + 8) * row


# What others count ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", read_oracle("model_configs.csv"), ids=lambda row: row["model"])
def test_parameters_bytes_and_flops_of_published_models(row):
    """Convention: 16-bit weights; logits of one row; FLOPs without attention, and attention's per attended key."""
    model, config = row["model"], shape_of(row["model"])
    operations = without_gate(model, decode_operations(config, context=1))
    linear = {name: work for name, work in operations.items() if name not in ("scores", "weighted_sum")}
    attention = {name: operations[name] for name in ("scores", "weighted_sum")}
    assert whole_pass(config, linear).flops == int(row["flops_per_token_without_attention"])
    assert whole_pass(config, linear).flops == 2 * int(row["matmul_params_incl_lm_head"])
    assert whole_pass(config, attention).flops == int(row["attention_flops_per_token_per_context_token"])
    layer = sum(work.flops for name, work in linear.items() if name not in ONCE_PER_PASS)
    assert layer == 2 * int(row["linear_params_per_layer"])
    if row["gated_mlp"] == "yes":
        assert parameters(config) == int(row["total_params"])
        assert weight_bytes_read(config, 1) == int(row["params_read_per_decode_step"])
        assert weight_bytes_read(config, 2) == int(row["bytes_read_per_decode_step_16bit"])


@pytest.mark.parametrize(
    "row", [row for row in read_oracle("kv_bytes_per_token.csv") if row["attention"] != "MLA"], ids=lambda r: r["model"]
)
def test_kv_bytes_per_token_of_published_models(row):
    """Multi-head latent attention, the two other rows, is not a decoder of this family."""
    config = shape_of(row["model"])
    assert config.kv_bytes_per_token(2) == int(row["kv_bytes_per_token_16bit"])
    assert config.kv_bytes_per_token(1) == int(row["kv_bytes_per_token_8bit"])
    as_if_mha = replace(config, kv_heads=config.heads)
    assert as_if_mha.kv_bytes_per_token(2) == int(row["bytes_if_mha_same_q_heads_16bit"])


LLM_VIEWER_NAMES = {"qk_matmul": "scores", "sv_matmul": "weighted_sum", "gate_proj": "gate"} | {
    "up_proj": "up",
    "down_proj": "down",
}
LLM_VIEWER_MODELS = {"meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Llama-3-8B": "llama-3-8b"}
NOT_MATRIX_PRODUCTS = ("softmax", "attn_norm", "mlp_norm", "attn_add", "mlp_add", "mlp_act")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("model", LLM_VIEWER_MODELS)
def test_each_matrix_product_equals_llm_viewers(model, phase):
    """Convention: full-square attention, and every input and output of a product crosses the memory bus.

    Three quirks of that tool are set right here: it counts 1 FLOP for a multiply-add of the head, moves the head's
    activations for one sequence of a batch only, and with grouped queries reads as many queries as there are
    *key/value* heads for the scores of a prefill.
    """
    rows = [
        row
        for row in read_oracle("llm_viewer_per_op.csv")
        if (row["model"], row["stage"]) == (model, phase) and row["op"] not in NOT_MATRIX_PRODUCTS
    ]
    assert len(rows) == 3 * 10
    config = find_shape(LLM_VIEWER_MODELS[model])
    for row in rows:
        batch, context, activation_bytes = int(row["batch"]), int(row["seqlen"]), int(row["a_bit"]) // 8
        weight_bytes, kv_bytes = int(row["w_bit"]) // 8, int(row["kv_bit"]) // 8
        name = LLM_VIEWER_NAMES.get(row["op"], row["op"])
        counted = llm_viewer_operations(config, phase, context, batch, weight_bytes, activation_bytes, kv_bytes)[name]
        flops, moved = int(row["OPs"]), int(row["memory_access"])
        if name == "lm_head":
            flops *= 2
            moved += (batch - 1) * (config.model_dim + config.vocab) * activation_bytes
        if name == "scores" and phase == "prefill":
            uncounted_heads = config.heads - config.kv_heads
            moved += batch * context * uncounted_heads * config.head_dim * activation_bytes
        assert (counted.flops, counted.bytes_moved) == (flops, moved), row["op"]


LLM_VIEWER_DEVICES = {
    "nvidia_A6000": replace(find_hardware("RTX A6000"), flops_per_second={"bf16": 309.677e12 / 2}),
    "nvidia_A100_80G": find_hardware("A100 80GB SXM"),
    "nvidia_H100_SXM": replace(
        find_hardware("H100 SXM"), bytes_per_second=3072e9, flops_per_second={"bf16": 1979e12 / 2}
    ),
}


@pytest.mark.parametrize("device", LLM_VIEWER_DEVICES)
def test_times_and_bounds_of_single_products_equal_llm_viewers(device):
    """Convention: its FLOPs, bytes and peaks (to more digits; 3,072 GB/s for an H100), 16-bit products, no launches."""
    rows = [row for row in read_oracle("llm_viewer_per_op.csv") if row["hardware"] == device]
    rows = [row for row in rows if row["op"] not in NOT_MATRIX_PRODUCTS]
    for row in rows:
        work, hardware = Work(int(row["OPs"]), int(row["memory_access"])), LLM_VIEWER_DEVICES[device]
        assert work.seconds_on(hardware, "bf16") == pytest.approx(float(row["inference_time"]), rel=1e-9), row["op"]
        assert work.bound_on(hardware, "bf16") == row["bound"]
        assert work.intensity == pytest.approx(float(row["arithmetic_intensity"]))
    assert {row["bound"] for row in rows} == {"compute", "memory"}


def test_gpt_2_flops_and_parameters_equal_nanogpts():
    """Convention: full-square attention, logits of all 1,024 rows, no biases, positions learned, MLP without a gate."""
    expected = {row["quantity"]: float(row["value"]) for row in read_oracle("nanogpt_sizing.csv")}
    model = "GPT-2 small (124M)"
    config = UNGATED[model]
    every = prefill_operations(config, 1024, attention="full_square", logits="all")
    operations = without_gate(model, every)
    flops = {name: work.flops for name, work in operations.items()}
    attention = sum(flops[name] for name in ("q_proj", "k_proj", "v_proj", "scores", "weighted_sum", "out_proj"))
    counted = {
        "flops_attention_kqv": flops["q_proj"] + flops["k_proj"] + flops["v_proj"],
        "flops_attention_scores": flops["scores"],
        "flops_attention_reduce": flops["weighted_sum"],
        "flops_attention_proj": flops["out_proj"],
        "flops_attention": attention,
        "flops_mlp_ffw1": flops["up"],
        "flops_mlp_ffw2": flops["down"],
        "flops_mlp": flops["up"] + flops["down"],
        "flops_block": attention + flops["up"] + flops["down"],
        "flops_transformer": 12 * (attention + flops["up"] + flops["down"]),
        "flops_dense_head": flops["lm_head"],
        "flops_forward_total": whole_pass(config, operations).flops,
        "params_total": parameters(config) - 12 * 3072 * 768 + expected["params_embedding_position"],
        "params_attention_kqv": flops["q_proj"] // 2 // 1024 * 3,
        "params_mlp_ffw": flops["up"] // 2 // 1024,
    }
    assert counted == {quantity: expected[quantity] for quantity in counted}


# What others measured ------------------------------------------------------------------------------------------------

SINGLE_DEVICE = [row for row in read_oracle("gpt_fast.csv") if row["gpus"] == "1"]
# int4 in groups of 32: half a byte, and a 16-bit scale and zero point for each group.
BYTES_PER_WEIGHT = {"bf16": 2, "int8": 1, "int4 g32": 0.5 + 4 / 32}


@pytest.mark.parametrize("row", SINGLE_DEVICE, ids=lambda row: f"{row['model']}-{row['weights']}-{row['device'][:4]}")
def test_bytes_behind_gpt_fasts_published_bandwidths_are_the_weights_within_1_5_percent(row):
    """Convention: GB/s = model bytes x tokens/s, KV rows left out.

    Its int4 and AMD figures, and that of Llama-2-7B in int8, still count the 16-bit embedding table as streamed.
    """
    config = find_shape(row["model"])
    implied = float(row["published_GB_per_s"]) / float(row["tok_per_s"])
    assert implied == pytest.approx(float(row["implied_bytes_GB"]), abs=5e-4)
    counted = weight_bytes_read(config, BYTES_PER_WEIGHT[row["weights"]])
    with_table = row["device"].startswith("MI250x") or row["weights"] == "int4 g32"
    if with_table or (row["model"], row["weights"]) == ("Llama-2-7B", "int8"):
        counted += config.vocab * config.model_dim * 2
    assert counted / 1e9 == pytest.approx(implied, rel=0.015)


@pytest.mark.parametrize(
    "row",
    read_oracle("predicted_vs_measured.csv"),
    ids=lambda row: "-".join(row[key] for key in ("phase", "model", "device", "n_devices", "context_or_prompt")),
)
def test_no_published_measurement_beats_the_bound(row):
    """Convention: exact causal attention, logits of the last row, KV rows read and not the one written.

    With several devices the bound is that of their summed peaks: no communication, so it is loose.
    """
    config, length = find_shape(row["model"]), int(row["context_or_prompt"])
    peak = float(row["peak_GB_per_s_or_TFLOP_per_s"])
    if row["phase"] == "decode":
        moved = decode_cost(config, length).bytes_moved - config.kv_bytes_per_token()
        assert moved / 1e9 == pytest.approx(float(row["GB_moved"]), abs=5.1e-5)
        seconds, tokens = moved / (peak * 1e9), 1
    else:
        flops = prefill_cost(config, length).flops
        assert flops / 1e12 == pytest.approx(float(row["TFLOP"]), abs=5.1e-5)
        seconds, tokens = flops / (peak * 1e12), length
    assert seconds * 1e3 == pytest.approx(float(row["bound_ms"]), rel=2e-3)
    assert float(row["measured_tok_per_s"]) < tokens / seconds


def test_every_source_that_the_tables_name_is_listed():
    known = {row["source_id"] for row in read_oracle("sources.csv")}
    for table in ("model_configs", "nanogpt_sizing", "gpt_fast", "predicted_vs_measured"):
        assert {row["source_id"] for row in read_oracle(f"{table}.csv")} <= known | {""}


# Properties ----------------------------------------------------------------------------------------------------------

CONFIGS = st.builds(
    lambda layers, model_dim, kv_heads, group, half_head, ffn, vocab, tied, window: ModelConfig(
        *("drawn", layers, model_dim, kv_heads * group, kv_heads, 2 * half_head, ffn, vocab, 10_000),
        tied_head=tied,
        sliding_window=window,
    ),
    *[st.integers(1, 20) for _ in range(7)],
    st.booleans(),
    st.none() | st.integers(1, 40),
)


@given(CONFIGS, st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 30), st.integers(1, 5))
def test_a_prefill_in_chunks_takes_the_flops_of_a_whole_one(config, chunks, past, batch):
    whole = prefill_cost(config, sum(chunks), past, batch, logits="all")
    parts = [
        prefill_cost(config, chunk, past + sum(chunks[:index]), batch, logits="all")
        for index, chunk in enumerate(chunks)
    ]
    assert sum(part.flops for part in parts) == whole.flops
    # ... and reads the weights once more for each further chunk: what chunking costs.
    assert sum(part.bytes_moved for part in parts) >= whole.bytes_moved + (len(chunks) - 1) * weight_bytes_read(config)


@given(CONFIGS, st.integers(1, 60), st.integers(1, 5))
def test_a_decode_step_takes_the_flops_of_a_prefill_of_one(config, context, batch):
    assert decode_cost(config, context, batch).flops == prefill_cost(config, 1, context - 1, batch).flops


@given(CONFIGS, st.integers(1, 60), st.integers(0, 60))
def test_full_square_is_twice_exact_causal_less_the_diagonal(config, new_tokens, past):
    config = replace(config, sliding_window=None)
    exact, square = (
        prefill_operations(config, new_tokens, past, attention=attention)["scores"].flops
        for attention in ("exact_causal", "full_square")
    )
    masked = new_tokens * (new_tokens - 1) // 2
    assert square - exact == 2 * config.heads * config.head_dim * masked


@given(st.integers(1, 40), st.integers(1, 40))
def test_counts_of_generation_equal_a_loop_that_counts(prompt, new_tokens):
    passes = [(0, prompt)] + [(prompt + step, 1) for step in range(new_tokens - 1)]
    assert kv_projections(prompt, new_tokens, cached=True) == sum(new for _, new in passes)
    assert score_pairs(prompt, new_tokens, cached=True) == sum(
        past + position + 1 for past, new in passes for position in range(new)
    )
    assert score_pairs(prompt, new_tokens, cached=False) == sum(
        position + 1 for step in range(new_tokens) for position in range(prompt + step)
    )


# Wrong input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prefill_cost(TOY, 0), "new_tokens is 0; it must be a whole number of at least 1"),
        (lambda: prefill_cost(TOY, 1, past=-1), "past is -1"),
        (lambda: decode_cost(TOY, 5, batch=0), "batch is 0"),
        (lambda: decode_cost(TOY, 2.5), "context is 2.5"),
        (lambda: prefill_cost(TOY, 1, attention="flash"), "attention is 'flash'; allowed: 'exact_causal'"),
        (lambda: prefill_cost(TOY, 1, logits="none"), "logits is 'none'"),
        (lambda: llm_viewer_operations(TOY, "train", 4), "phase is 'train'"),
        (lambda: kv_projections(0, 1, cached=True), "prompt is 0"),
        (lambda: find_shape("llama-3-9b"), "Did you mean 'llama-3-8b'"),
        (lambda: find_shape("zzz"), "Known: llama-2-7b"),
    ],
)
def test_wrong_input_is_refused_by_name(call, message):
    with pytest.raises(BadInput, match=message):
        call()


def test_shapes_are_at_least_twelve_and_hold_their_published_sizes():
    assert len(SHAPES) >= 12 and all(name == config.name for name, config in SHAPES.items())
    assert parameters(find_shape("SmolLM2-135M")) == 134_515_008
    assert parameters(find_shape("smollm2-360m")) == 361_821_120
    assert parameters(find_shape("qwen3-0.6b")) == 596_049_920
