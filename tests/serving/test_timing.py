"""The times of a request, from its tokens' timestamps."""

import pytest

from tinyinfer.performance import metrics

# The first token after half a second, nine more every twentieth of one.
TIMES = [0.50 + 0.05 * token for token in range(10)]


def test_tpot_leaves_out_the_first_token():
    timing = metrics.timing_from_timestamps(0.0, TIMES)
    assert timing.ttft_seconds == pytest.approx(0.50)
    assert timing.e2e_seconds == pytest.approx(0.95)
    assert timing.tpot_seconds == pytest.approx(0.05)  # not 0.095, the end-to-end time over ten, nor 0.045
    assert timing.itl_seconds == pytest.approx([0.05] * 9)


def test_times_count_from_the_start_of_the_request():
    timing = metrics.timing_from_timestamps(100.0, [100 + time for time in TIMES])
    assert timing.ttft_seconds == pytest.approx(0.50)
    assert timing.e2e_seconds == pytest.approx(0.95)


def test_one_token_has_no_tpot_rather_than_zero():
    timing = metrics.timing_from_timestamps(0.0, [0.5])
    assert timing.tpot_seconds is None
    assert list(timing.itl_seconds) == []
    assert timing.ttft_seconds == timing.e2e_seconds == 0.5


def test_a_completion_s_timing_is_that_of_its_events(tang):
    timing = tang.generate("白日依山", max_new_tokens=7).timing
    assert 0 < timing.ttft_seconds <= timing.e2e_seconds
    assert len(timing.itl_seconds) == 6
    assert timing.ttft_seconds + sum(timing.itl_seconds) == pytest.approx(timing.e2e_seconds)
    assert timing.tpot_seconds == pytest.approx(sum(timing.itl_seconds) / 6)
