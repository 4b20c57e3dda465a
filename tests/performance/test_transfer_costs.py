"""Bytes, seconds and gains of a hand-off: cases worked by hand, published counts, and a fit that finds its own line."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from random_models import make_config

from tinyinfer import BadInput
from tinyinfer.performance.cost import prefill_cost
from tinyinfer.performance.hardware import find_hardware
from tinyinfer.performance.shapes import SHAPES, find_shape
from tinyinfer.performance.transfer import (
    LINKS,
    Link,
    RequestTiming,
    break_even_bandwidth,
    fit_link,
    payload_bytes,
    split_cases,
)


@pytest.mark.parametrize(
    ("model", "dtype", "bytes_per_token"),
    [
        ("llama-3-8b", "bf16", 131_072),
        ("llama-2-7b", "bf16", 524_288),
        ("llama-3-70b", "bf16", 327_680),
        ("qwen3-0.6b", "bf16", 114_688),
        ("smollm2-135m", "fp32", 46_080),
    ],
)
def test_a_payload_is_length_times_bytes_per_token(model, dtype, bytes_per_token):
    assert payload_bytes(find_shape(model), 1, dtype) == bytes_per_token
    assert payload_bytes(find_shape(model), 513, dtype) == 513 * bytes_per_token
    assert payload_bytes(find_shape(model), 0, dtype) == 0


def test_key_value_heads_count_and_query_heads_do_not():
    assert payload_bytes(make_config(layers=3, heads=6, kv_heads=2, head_dim=10), 7) == 7 * 2 * 3 * 2 * 10 * 4
    with pytest.raises(BadInput, match="length is -1"):
        payload_bytes(make_config(), -1)
    with pytest.raises(BadInput, match="dtype 'bf17'"):
        payload_bytes(make_config(), 1, "bf17")


def test_a_message_takes_latency_and_bytes_over_rate():
    link = Link("by hand", bytes_per_second=2e9, latency_seconds=0.003)
    assert link.seconds_for(0) == 0.003
    assert link.seconds_for(5e9) == pytest.approx(2.503)


def test_line_rates_are_bits_over_eight_and_lanes_times_rate():
    assert LINKS["100 Gb/s"].bytes_per_second == 100e9 / 8
    assert LINKS["400 Gb/s"].bytes_per_second == 400e9 / 8
    assert LINKS["PCIe 4.0 x16"].bytes_per_second == pytest.approx(16 * 16e9 * 128 / 130 / 8, rel=2e-3)
    assert LINKS["PCIe 5.0 x16"].bytes_per_second == pytest.approx(16 * 32e9 * 128 / 130 / 8, rel=2e-3)
    rates = [link.bytes_per_second for link in LINKS.values()]
    assert rates == sorted(rates)
    assert all(link.source and link.latency_seconds == 0 for link in LINKS.values())


def test_a_fit_finds_the_link_that_made_the_times():
    true = Link("true", 3e9, 0.0007)
    sizes = [1e4, 3e5, 7e6, 4e7, 4e7]
    fitted = fit_link(sizes, [true.seconds_for(size) for size in sizes])
    assert fitted.bytes_per_second == pytest.approx(3e9)
    assert fitted.latency_seconds == pytest.approx(0.0007)


def test_a_fit_stands_noise_and_weighs_small_messages_too():
    noise = np.random.default_rng(5)
    sizes = np.repeat([1e3, 1e5, 1e7, 1e8], 13)
    times = (0.002 + sizes / 1e9) * noise.uniform(0.9, 1.1, len(sizes))
    fitted = fit_link(sizes, times)
    assert fitted.bytes_per_second == pytest.approx(1e9, rel=0.05)
    assert fitted.latency_seconds == pytest.approx(0.002, rel=0.05)


def test_a_latency_below_zero_becomes_zero():
    fitted = fit_link([1e6, 2e6], [0.8e-3, 2e-3])
    assert fitted.latency_seconds == 0.0
    assert 1e9 < fitted.bytes_per_second < 1.25e9


@pytest.mark.parametrize(
    ("sizes", "seconds", "reason"),
    [
        ([1e6], [1.0], "at least two sizes"),
        ([1e6, 1e6], [1.0, 1.1], "at least two sizes"),
        ([1e6, 2e6], [1.0], "at least two sizes"),
        ([1e6, 2e6], [1.0, 0.0], "seconds above 0"),
        ([1e6, 2e6], [1.0, float("nan")], "seconds above 0"),
        ([-1e6, 2e6], [1.0, 2.0], "sizes of at least 0"),
        ([1e6, 2e8], [2.0, 1e-3], "larger messages did not take longer"),
    ],
)
def test_what_is_no_line_is_refused(sizes, seconds, reason):
    with pytest.raises(BadInput, match=reason):
        fit_link(sizes, seconds)


def test_at_the_break_even_rate_the_transfer_lasts_as_long_as_the_stall_it_spares():
    config, hardware = find_shape("llama-3-8b"), find_hardware("H100 SXM")
    rate = break_even_bandwidth(config, hardware, 2048)
    prefill = prefill_cost(config, 2048).seconds_on(hardware, "bf16")
    assert payload_bytes(config, 2048, "bf16") / rate == pytest.approx(prefill)
    # By hand: 2 x 6.98e9 parameters in layers x 2048 tokens, 1.1e12 FLOP of attention, at 989.4e12 FLOP/s; 268 MB.
    assert prefill == pytest.approx((2 * 6.98e9 * 2048 + 1.1e12) / 989.4e12, rel=0.01)
    assert rate == pytest.approx(268.4e6 / 0.0300, rel=0.01)
    assert break_even_bandwidth(config, hardware, 2048, running_decodes=4) == pytest.approx(rate / 4)
    assert break_even_bandwidth(config, hardware, 2048, chips=8) == pytest.approx(rate * 8)


def test_grouped_heads_lower_the_rate_that_is_needed():
    hardware = find_hardware("H100 SXM")
    multi_head, grouped = (
        break_even_bandwidth(find_shape(name), hardware, 4096) for name in ("llama-2-7b", "llama-3-8b")
    )
    assert multi_head > 3 * grouped


def test_a_table_says_where_splitting_pays():
    configs = [find_shape("llama-3-8b"), find_shape("llama-2-7b")]
    cases = split_cases(configs, find_hardware("H100 SXM"), [512, 8192])
    assert [(case.model, case.prompt) for case in cases] == [
        ("llama-3-8b", 512),
        ("llama-3-8b", 8192),
        ("llama-2-7b", 512),
        ("llama-2-7b", 8192),
    ]
    for case in cases:
        for name, link in LINKS.items():
            assert case.seconds_by_link[name] == link.seconds_for(case.payload_bytes)
            assert case.pays_on(name) == (link.bytes_per_second > case.break_even_bytes_per_second)
    assert not cases[1].pays_on("10 Gb/s") and cases[1].pays_on("400 Gb/s")


def test_pays_counts_every_stream_that_would_have_stalled():
    (case,) = split_cases([find_shape("llama-2-7b")], find_hardware("H100 SXM"), [8192], [LINKS["100 Gb/s"]])
    (shared,) = split_cases(
        [find_shape("llama-2-7b")], find_hardware("H100 SXM"), [8192], [LINKS["100 Gb/s"]], running_decodes=16
    )
    assert not case.pays_on("100 Gb/s") and shared.pays_on("100 Gb/s")


def test_every_published_shape_can_be_tabulated():
    cases = split_cases(list(SHAPES.values()), find_hardware("H200 SXM"), [1024])
    assert len(cases) == len(SHAPES) and all(case.break_even_bytes_per_second > 0 for case in cases)


def test_no_chips_or_no_decodes_are_refused():
    config, hardware = find_shape("llama-3-8b"), find_hardware("H100 SXM")
    for wrong in ({"chips": 0}, {"running_decodes": 0}):
        with pytest.raises(BadInput, match="must be at least 1"):
            break_even_bandwidth(config, hardware, 128, **wrong)


TIMING = RequestTiming(
    queue_seconds=0.1,
    prefill_seconds=0.4,
    decode_queue_seconds=0.05,
    transfer_seconds=0.2,
    first_step_seconds=0.03,
    token_seconds=(0.5, 0.78, 0.81),
    prefill_compute_seconds=0.35,
    pack_seconds=0.02,
    receive_seconds=0.17,
    first_step_compute_seconds=0.02,
)


def test_which_token_counts_as_first_decides_what_ttft_contains():
    assert TIMING.ttft_seconds == 0.5  # queue and prefill
    assert TIMING.decode_ttft_seconds == pytest.approx(0.78)  # and the wait, the transfer and a step
    assert TIMING.client_timing.ttft_seconds == 0.5
    assert TIMING.client_timing.itl_seconds == pytest.approx((0.28, 0.03))


def test_overhead_is_what_no_worker_and_no_wait_accounts_for():
    assert TIMING.overhead_seconds == pytest.approx(0.78 - 0.1 - 0.05 - 0.35 - 0.02 - 0.17 - 0.02)


def test_a_timing_comes_back_from_plain_numbers():
    assert RequestTiming.from_dict(asdict(TIMING) | {"token_seconds": [0.5, 0.78, 0.81]}) == TIMING
    assert replace(TIMING, recoveries=2) != TIMING
