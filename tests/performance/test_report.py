"""Predictions in words: units, columns, and what is said where nobody knows."""

from dataclasses import replace

import pytest

from tinyinfer.performance import report
from tinyinfer.performance.hardware import find_hardware
from tinyinfer.performance.prediction import predict_phases
from tinyinfer.performance.shapes import find_shape

H200, LLAMA = find_hardware("H200"), find_shape("llama-3-8b")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (4.8e12, "4.80 TB"),
        (989.4e12, "989 TB"),
        (0.0123, "12.3 mB"),
        (1.23e-5, "12.3 µB"),
        (1, "1.00 B"),
        (9.999, "10.0 B"),
        (999.6, "1.00 kB"),
        (0, "0.00 B"),
    ],
)
def test_a_prefix_keeps_three_digits(value, expected):
    assert report.with_prefix(value, "B") == expected


def test_the_table_has_a_line_for_each_phase_and_batch_and_columns_that_line_up():
    header, *lines = report.format_predictions(predict_phases(LLAMA, H200, 2048, 4096, [1, 250])).splitlines()
    assert header.split() == [
        *("phase", "batch", "tokens", "context", "FLOP", "bytes", "FLOP/byte", "bound"),
        *("predicted", "tokens/s", "memory", "fits"),
    ]
    assert [line.split()[:2] for line in lines] == [
        ["prefill", "1"],
        ["prefill", "250"],
        ["decode", "1"],
        ["decode", "250"],
    ]
    assert [line.split()[-1] for line in lines] == ["yes", "yes", "yes", "no"]
    assert {len(line) for line in lines[:3]} == {len(header)}
    assert "TTFT 30.0 ms" in lines[0] and "TPOT 3.24 ms" in lines[2]


def test_what_nobody_published_or_measured_is_said_so():
    apple = find_hardware("M1 Pro")
    assert "no FLOP/s published, so memory alone bounds the times" in report.describe_hardware(apple, "bf16")
    assert "memory not known" in report.describe_hardware(apple, "bf16")
    assert report.format_predictions(predict_phases(LLAMA, apple, 5, 7, [1])).splitlines()[1].endswith("  ?")
    assert "unknown" in report.describe_largest_batch(apple, 7, None)
    assert report.describe_launch_floor(H200) == "The launch floor of H200 SXM is not measured and counts as 0."
    measured = report.describe_launch_floor(replace(H200, launch_floor_seconds=2.5e-6))
    assert measured == "The launch floor of H200 SXM is 2.50 µs for each kernel."


def test_peak_ridge_bandwidth_and_memory_stand_in_one_line():
    assert report.describe_hardware(H200, "bf16") == (
        "H200 SXM: 989 TFLOP/s in bf16, ridge at 206.1 FLOP per byte, 4.80 TB/s, memory 141 GB"
    )


def test_a_critical_batch_or_the_reason_why_there_is_none():
    assert report.describe_critical_batch(128, 267, 565) == "At context 128 decode is compute-bound from batch 267."
    assert "At context 4,096 no batch" in report.describe_critical_batch(4096, None, 565)
    assert "above context 565" in report.describe_critical_batch(4096, None, 565)
