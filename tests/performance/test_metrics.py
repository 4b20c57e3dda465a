"""TTFT, TPOT, ITL, E2E, throughput and goodput, against cases worked by hand and by other projects."""

import csv
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyinfer.errors import BadInput
from tinyinfer.performance.metrics import (
    ServedRequest,
    closed_loop_throughput,
    goodput,
    mean_tpot,
    output_throughput,
    percentile,
    pooled_mean_itl,
    request_throughput,
    timing_from_timestamps,
)

ORACLES = Path(__file__).parent.parent / "oracles"


def read_oracle(name):
    with open(ORACLES / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


WORKED = read_oracle("metric_worked_cases.csv")
WITH_EVENTS = [row for row in WORKED if row["response_times"] and row["request_start"]]
# Each row here is (case, the requests that it pools).
POOLED = [row for row in WORKED if row["expected_metric"].endswith("_per_ns")]


def request_of(row):
    times = tuple(int(moment) for moment in row["response_times"].split(";"))
    return ServedRequest(int(row["request_start"]), times, int(row["output_tokens"]))


def measure(metric, timing):
    match metric:
        case "e2e":
            return timing.e2e_seconds
        case "ttft":
            return timing.ttft_seconds
        case "ttst":  # time from the first to the second event
            return timing.itl_seconds[0]
        case "tpot":
            return "undefined" if timing.tpot_seconds is None else timing.tpot_seconds
        case "tpot_rounded":  # GenAI-Perf rounds to whole nanoseconds, halves to even
            return round(timing.tpot_seconds)
        case "itl_mean":
            return pooled_mean_itl([timing])
    raise AssertionError(f"a metric that no test knows: {metric}")


@pytest.mark.parametrize("row", WITH_EVENTS, ids=lambda row: f"{row['case_id']}-{row['expected_metric']}")
def test_each_worked_case_of_other_projects_comes_out_exactly(row):
    expected = row["expected_value"] if row["expected_value"] == "undefined" else float(row["expected_value"])
    assert measure(row["expected_metric"], request_of(row).timing) == expected


@pytest.mark.parametrize("row", POOLED, ids=lambda row: f"{row['case_id']}-{row['expected_metric']}")
def test_pooled_rates_of_genai_perf_come_out_exactly(row):
    members = {other["case_id"]: request_of(other) for other in WITH_EVENTS}
    requests = [request for case, request in members.items() if case[:-1].rstrip("_") == row["case_id"]]
    assert len(requests) == 2
    rate = output_throughput if row["expected_metric"].startswith("output_tokens") else request_throughput
    assert rate(requests) == float(Fraction(row["expected_value"]))


def test_sglang_even_stream_has_equal_tpot_and_itl_and_a_bursty_one_has_not():
    even, bursty = (row for row in WORKED if row["source_id"] == "sglang-pr1340")
    assert even["expected_value"] == "1;1" and bursty["expected_value"] == "1;10"
    timing = timing_from_timestamps(0, range(1, 51))
    assert (timing.tpot_seconds, set(timing.itl_seconds)) == (1, {1})
    # That source divides all of E2E by all N; here the first event counts for neither, so TPOT is 40 s / 49.
    timing = timing_from_timestamps(0, range(10, 51, 10), output_tokens=50)
    assert (timing.e2e_seconds / 50, set(timing.itl_seconds)) == (1, {10})
    assert timing.tpot_seconds == 40 / 49


def test_every_worked_case_is_covered_and_its_source_is_known():
    covered = len(WITH_EVENTS) + len(POOLED) + sum(row["source_id"] == "sglang-pr1340" for row in WORKED)
    assert covered == len(WORKED) == 32
    known = {row["source_id"] for row in read_oracle("sources.csv")}
    assert {row["source_id"] for row in WORKED + read_oracle("nim_serving.csv")} <= known | {""}


def test_case_19_tpot_holds_neither_the_first_token_nor_a_division_by_n():
    timing = timing_from_timestamps(0.0, [0.50 + 0.05 * step for step in range(10)])
    assert timing.ttft_seconds == 0.50
    assert timing.e2e_seconds == pytest.approx(0.95)
    assert timing.tpot_seconds == pytest.approx(0.05)  # not 0.95 / 10 = 0.095, not 0.45 / 10 = 0.045
    assert len(timing.itl_seconds) == 9
    single = timing_from_timestamps(0.0, [0.5])
    assert single.tpot_seconds is None and single.itl_seconds == ()


def test_case_20_mean_tpot_over_requests_is_not_mean_itl_over_gaps():
    short = timing_from_timestamps(0.0, [0.2, 0.3])
    long = timing_from_timestamps(0.0, [0.01 * step for step in range(1, 12)])
    assert mean_tpot([short, long]) == pytest.approx(0.055)
    assert pooled_mean_itl([short, long]) == pytest.approx(0.2 / 11)
    single = timing_from_timestamps(0.0, [0.5])
    assert mean_tpot([short, long, single]) == pytest.approx(0.055)  # an undefined TPOT is left out, not 0
    assert mean_tpot([single]) is None and pooled_mean_itl([single]) is None


@pytest.mark.parametrize("row", [row for row in read_oracle("nim_serving.csv") if row["osl"]])
def test_published_serving_throughput_obeys_littles_law_within_1_percent(row):
    identity = closed_loop_throughput(
        int(row["concurrency"]), int(row["osl"]), float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3
    )
    assert identity == pytest.approx(float(row["identity_tok_per_s"]), abs=0.005)
    assert identity == pytest.approx(float(row["published_tok_per_s"]), rel=0.01)


def test_goodput_counts_what_meets_both_limits_and_asks_how_to_judge_one_token():
    fast = ServedRequest(0.0, (0.5, 0.75, 1.0), 3)
    late = ServedRequest(0.0, (1.0, 1.25), 2)
    slow = ServedRequest(0.0, (0.5, 2.0), 2)
    single = ServedRequest(0.0, (0.25,), 1)
    requests = [fast, late, slow, single]
    # Equality meets a limit: `fast` is at both. From first start to last end 2 s pass.
    assert goodput(requests, 0.5, 0.25, single_token_policy="never_good") == 1 / 2
    assert goodput(requests, 0.5, 0.25, single_token_policy="judge_ttft_only") == 2 / 2
    assert goodput(requests, 0.125, 0.25, single_token_policy="judge_ttft_only") == 0
    assert output_throughput(requests) == (3 + 2 + 2 + 1) / 2
    with pytest.raises(TypeError, match="single_token_policy"):
        goodput(requests, 0.5, 0.25)
    with pytest.raises(BadInput, match=r"'zero'.*judge_ttft_only"):
        goodput(requests, 0.5, 0.25, single_token_policy="zero")


@pytest.mark.parametrize(
    ("start", "moments", "message"),
    [
        (0.0, [], "empty"),
        (0.0, [1.0, 0.5], "must not decrease: 0.5 s follows 1.0 s"),
        (2.0, [1.0], "must not decrease"),
        (0.0, [1.0, math.nan], "must not decrease"),
    ],
)
def test_timestamps_that_no_clock_gives_are_refused(start, moments, message):
    with pytest.raises(BadInput, match=message):
        timing_from_timestamps(start, moments)


def test_fewer_tokens_than_events_no_requests_and_no_time_are_refused():
    with pytest.raises(BadInput, match="output_tokens is 1, fewer than the 2 events"):
        timing_from_timestamps(0.0, [1.0, 2.0], output_tokens=1)
    with pytest.raises(BadInput, match="requests is empty"):
        output_throughput([])
    with pytest.raises(BadInput, match="more than 0 s"):
        output_throughput([ServedRequest(1.0, (1.0,), 1)])


GAPS = st.lists(st.floats(0, 1e3), min_size=1, max_size=20)


@given(start=st.floats(-1e3, 1e3), gaps=GAPS)
def test_ttft_and_all_gaps_add_up_to_e2e(start, gaps):
    moments = [start + total for total in np.cumsum(gaps).tolist()]
    timing = timing_from_timestamps(start, moments)
    assert timing.ttft_seconds + sum(timing.itl_seconds) == pytest.approx(timing.e2e_seconds, abs=1e-9)
    if len(gaps) > 1:  # one token in each event: within one request TPOT is the mean ITL
        assert timing.tpot_seconds == pytest.approx(pooled_mean_itl([timing]), abs=1e-9)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), percent=st.floats(0, 100))
def test_percentile_agrees_with_numpy(values, percent):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)


def test_percentile_of_nothing_or_beyond_100_is_refused():
    assert percentile([7.0, 1.0, 5.0, 3.0], 50) == 4.0
    with pytest.raises(BadInput, match="no values"):
        percentile([], 50)
    with pytest.raises(BadInput, match="101"):
        percentile([1.0], 101)
