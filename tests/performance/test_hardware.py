"""Published peaks, names, ridge points, and the three limits that bound a time."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import BadInput
from tinyinfer.performance.cost import Work
from tinyinfer.performance.hardware import HARDWARE, Hardware, find_hardware

ORACLES = Path(__file__).parent.parent / "oracles"
with open(ORACLES / "hardware_peaks.csv", encoding="utf-8", newline="") as file:
    ROWS = {row["device"]: row for row in csv.DictReader(file)}

# The table's names where ours are shorter, or name one of two memory sizes.
OUR_NAMES = {
    "V100 SXM2": "V100 SXM2 32GB",
    "V100 PCIe": "V100 PCIe 32GB",
    "EPYC 9654 (96 cores)": "EPYC 9654",
    "Xeon 8480+ (56 cores)": "Xeon 8480+",
    "Threadripper PRO 5995WX (64 cores)": "Threadripper PRO 5995WX",
    "i9-13900K, DDR5-5600 dual channel": "i9-13900K",
}
OURS = {device: HARDWARE[OUR_NAMES.get(device, device)] for device in ROWS if OUR_NAMES.get(device, device) in HARDWARE}


@pytest.mark.parametrize("device", OURS)
def test_dense_peaks_bandwidth_memory_and_ridge_equal_the_published_table(device):
    row, ours = ROWS[device], OURS[device]
    assert ours.bytes_per_second == float(row["bandwidth_GB_per_s"]) * 1e9
    if ours.memory_bytes is not None:
        assert ours.memory_bytes / 1e9 in [float(size) for size in row["memory_GB"].split("/")]
    column = {"fp32": "fp32_tflops", "tf32": "tf32_dense", "fp8": "fp8_dense", "int8": "int8_dense"}
    for dtype, peak in ours.flops_per_second.items():
        assert peak == pytest.approx(float(row[column.get(dtype, "fp16_bf16_dense")]) * 1e12, rel=1e-12)
    for dtypes, ridge in ((("fp16", "bf16"), "ridge_fp16_flop_per_byte"), (("fp32",), "ridge_fp32_flop_per_byte")):
        for dtype in set(dtypes) & set(ours.flops_per_second):
            assert ours.ridge(dtype) == pytest.approx(float(row[ridge]), abs=0.051)  # the table rounds to 0.1
    assert "recalled" not in row["status"], "a figure from memory has no source to name"


def test_every_device_is_checked_against_the_table_and_names_its_source():
    assert {device.name for device in OURS.values()} == set(HARDWARE) and len(HARDWARE) >= 15
    assert all(device.source for device in HARDWARE.values())
    with open(ORACLES / "sources.csv", encoding="utf-8", newline="") as file:
        known = {row["source_id"] for row in csv.DictReader(file)}
    assert {row["source_id"] for row in ROWS.values()} <= known | {"", "llama-roofline"}


def test_case_18_no_peak_is_the_sparse_one():
    for device, ours in OURS.items():
        sparse = ROWS[device]["marketing_sparse_fp16"]
        if sparse:
            assert ours.peak("fp16") == pytest.approx(float(sparse) * 1e12 / 2, rel=0.02)
    assert find_hardware("H100 SXM").peak("bf16") == find_hardware("H200").peak("bf16") == 989.4e12


def test_case_18_more_than_the_peak_is_refused_as_a_broken_measurement():
    h200 = find_hardware("H200")
    assert h200.share_of_peak(989.4e12 / 2, 1.0, "bf16") == 0.5
    with pytest.raises(BadInput, match=r"2\.00 times the bf16 peak of H200 SXM"):
        h200.share_of_peak(2 * 989.4e12, 1.0, "bf16")
    with pytest.raises(BadInput, match="no FLOP/s is published"):
        find_hardware("M1 Pro").share_of_peak(1.0, 1.0, "bf16")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H200", "H200 SXM"),
        ("h200 sxm", "H200 SXM"),
        ("4090", "RTX 4090"),
        ("A10", "A10"),
        ("a100 pcie", "A100 80GB PCIe"),
    ],
)
def test_part_of_a_name_is_enough_when_one_device_has_it(name, expected):
    assert find_hardware(name).name == expected


def test_an_ambiguous_name_lists_its_candidates_and_an_unknown_one_its_neighbours():
    with pytest.raises(BadInput, match="say one of: A100 40GB SXM, A100 80GB SXM, A100 80GB PCIe"):
        find_hardware("A100")
    with pytest.raises(BadInput, match="Did you mean 'H200'"):
        find_hardware("H20O")
    with pytest.raises(BadInput, match="not known"):
        find_hardware(" ")


def test_bf16_exists_only_where_the_silicon_has_it():
    with pytest.raises(BadInput, match="no bf16 peak is known for V100 SXM2 32GB; known: fp32, fp16"):
        find_hardware("V100 SXM2").ridge("bf16")
    assert find_hardware("A100 80GB SXM").ridge("bf16") == pytest.approx(153.0, abs=0.05)


# 1,000 FLOP/s and 10 bytes/s: the ridge lies at 100 FLOP per byte, and starting a kernel takes half a second.
TOY = Hardware("toy", {"bf16": 1000.0}, 10.0, None, "worked by hand", launch_floor_seconds=0.5)


@pytest.mark.parametrize(
    ("work", "seconds", "bound"),
    [
        (Work(3000, 20, 1), 3.0 + 0.5, "compute"),
        (Work(1000, 20, 1), 2.0 + 0.5, "memory"),
        (Work(1000, 10, 1), 1.0 + 0.5, "memory"),  # on the ridge itself both take as long
        (Work(1000, 20, 5), 2.0 + 2.5, "launch"),
        (Work(1000, 20, 4), 2.0 + 2.0, "memory"),  # launch only when it exceeds the others
    ],
)
def test_time_is_the_larger_of_compute_and_memory_plus_the_launches(work, seconds, bound):
    assert work.seconds_on(TOY) == seconds
    assert work.bound_on(TOY) == bound


def test_without_published_flops_memory_alone_bounds():
    apple = find_hardware("Apple M1 Pro")
    assert apple.ridge("bf16") is None
    assert Work(10**18, 200e9, 1).seconds_on(apple) == 1.0
    assert Work(10**18, 200e9, 1).bound_on(apple) == "memory"


@given(st.integers(1, 10**15), st.integers(1, 10**12), st.sampled_from(["H200", "A100 80GB SXM", "L4", "RTX 4090"]))
def test_a_device_is_compute_bound_exactly_above_its_ridge(flops, bytes_moved, name):
    device, work = find_hardware(name), Work(flops, bytes_moved)
    assert (work.bound_on(device) == "compute") == (
        flops / device.flops_per_second["bf16"] > bytes_moved / device.bytes_per_second
    )
    if abs(work.intensity / device.ridge("bf16") - 1) > 1e-9:
        assert (work.bound_on(device) == "compute") == (work.intensity > device.ridge("bf16"))
