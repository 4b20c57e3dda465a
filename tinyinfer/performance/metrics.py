"""What a user feels and what a server sells: TTFT, TPOT, ITL, E2E, throughput and goodput, from timestamps alone.

Every definition is per request with N output tokens; times are in seconds on one clock. Projects differ in these
definitions, so each docstring says which one it takes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tinyinfer.errors import BadInput


@dataclass(frozen=True)
class Timing:
    """One request, timed, in seconds. `tpot_seconds` is None for a single token: no decode step took place."""

    ttft_seconds: float
    tpot_seconds: float | None
    itl_seconds: tuple[float, ...]
    e2e_seconds: float


@dataclass(frozen=True)
class ServedRequest:
    """When one request was accepted and when each event with output arrived, in seconds.

    `output_tokens` is N; it may exceed the number of events, because a server may send several tokens in one event.
    """

    start_seconds: float
    token_seconds: tuple[float, ...]
    output_tokens: int

    @property
    def timing(self) -> Timing:
        """The times of this request, as its client saw them."""
        return timing_from_timestamps(self.start_seconds, self.token_seconds, self.output_tokens)


def timing_from_timestamps(
    start_seconds: float, token_seconds: Sequence[float], output_tokens: int | None = None
) -> Timing:
    """Time one request from the moment it was accepted and the moment of each output event, all in seconds.

    TTFT = first - start; E2E = last - start; ITL = the gaps between events; TPOT = (E2E - TTFT) / (N - 1), so the
    first token is in neither its numerator nor its denominator. N is the number of events unless `output_tokens`
    says that some carried several tokens. Source: the latency metrics of vLLM's and GenAI-Perf's documentation.
    Raises `BadInput` when there is no event, time runs backwards, or N is less than the number of events.
    """
    if not token_seconds:
        raise BadInput("token_seconds is empty; a request with no output token has no timing")
    moments = [start_seconds, *token_seconds]
    for earlier, later in pairwise(moments):
        if not earlier <= later:  # written so that NaN is refused too
            raise BadInput(f"timestamps must not decrease: {later} s follows {earlier} s")
    count = len(token_seconds) if output_tokens is None else output_tokens
    if count < len(token_seconds):
        raise BadInput(f"output_tokens is {count}, fewer than the {len(token_seconds)} events that carried them")

    ttft, e2e = token_seconds[0] - start_seconds, token_seconds[-1] - start_seconds
    return Timing(
        ttft_seconds=ttft,
        tpot_seconds=(e2e - ttft) / (count - 1) if count > 1 else None,
        itl_seconds=tuple(later - earlier for earlier, later in pairwise(token_seconds)),
        e2e_seconds=e2e,
    )


def output_throughput(requests: Sequence[ServedRequest]) -> float:
    """Output tokens per second of the whole server: all N / (last end - first start)."""
    return sum(request.output_tokens for request in requests) / _served_seconds(requests)


def request_throughput(requests: Sequence[ServedRequest]) -> float:
    """Finished requests per second: how many / (last end - first start)."""
    return len(requests) / _served_seconds(requests)


def goodput(
    requests: Sequence[ServedRequest],
    ttft_limit_seconds: float,
    tpot_limit_seconds: float,
    *,
    single_token_policy: Literal["judge_ttft_only", "never_good"],
) -> float:
    """Requests per second that meet *both* limits (equality meets a limit). Source: DistServe (Zhong et al., 2024).

    A request of one token has no TPOT to judge. Counting it as 0 would make it always good without anyone saying so;
    here the caller says it.
    """
    if single_token_policy not in ("judge_ttft_only", "never_good"):
        raise BadInput(f"single_token_policy is {single_token_policy!r}; allowed: 'judge_ttft_only', 'never_good'")

    def is_good(timing: Timing) -> bool:
        if timing.ttft_seconds > ttft_limit_seconds:
            return False
        if timing.tpot_seconds is None:
            return single_token_policy == "judge_ttft_only"
        return timing.tpot_seconds <= tpot_limit_seconds

    return sum(is_good(request.timing) for request in requests) / _served_seconds(requests)


def closed_loop_throughput(concurrency: int, output_tokens: int, ttft_seconds: float, tpot_seconds: float) -> float:
    """Output tokens per second when `concurrency` clients each send a new request as soon as the last one ends.

    Little's law: requests in flight = request rate x time of one request, which lasts TTFT + TPOT x (N - 1) seconds.
    """
    return concurrency * output_tokens / (ttft_seconds + tpot_seconds * (output_tokens - 1))


def mean_tpot(timings: Iterable[Timing]) -> float | None:
    """Mean over *requests*, in seconds: a short answer weighs as much as a long one. None if none has a TPOT."""
    return _mean([timing.tpot_seconds for timing in timings if timing.tpot_seconds is not None])


def pooled_mean_itl(timings: Iterable[Timing]) -> float | None:
    """Mean over all *gaps*, in seconds: a long answer weighs more. None when there is no gap; not the mean TPOT."""
    return _mean([gap for timing in timings for gap in timing.itl_seconds])


def percentile(values: Iterable[float], percent: float) -> float:
    """The value below which `percent` (0 to 100) of the values lie, interpolated linearly between neighbours.

    Source: type 7 of Hyndman and Fan (1996), the default of NumPy.
    """
    ordered = sorted(values)
    if not ordered:
        raise BadInput("percentile of no values")
    if not 0 <= percent <= 100:
        raise BadInput(f"percent is {percent}; it must lie between 0 and 100")
    place = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _served_seconds(requests: Sequence[ServedRequest]) -> float:
    if not requests:
        raise BadInput("requests is empty; a rate needs at least one request")
    seconds = max(request.token_seconds[-1] for request in requests) - min(r.start_seconds for r in requests)
    if not seconds > 0:
        raise BadInput(f"the requests lasted {seconds} s from first start to last end; a rate needs more than 0 s")
    return seconds
