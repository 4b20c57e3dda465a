"""The request on a time axis: parts that follow each other, a still picture and a widget of the same numbers."""

import html
import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tinyinfer import BadInput
from tinyinfer.figures.request import Gaps
from tinyinfer.figures.style import DECODE, OTHER, PREFILL, TRANSFER
from tinyinfer.figures.timeline import LANES, draw_timeline, request_parts, request_timeline, summarise_gaps
from tinyinfer.performance.transfer import RequestTiming
from tinyinfer.serving.trace import (
    DecodeStage,
    PrefillStage,
    RequestStage,
    ResultStage,
    Token,
    Trace,
    TransferStage,
)


def rows_of(count):
    return {"layer_0": {"head_0": {"K": np.zeros((count, 3)), "V": np.zeros((count, 3))}}}


def made_trace(
    prompt="白日依山尽", answer="黄河流", seconds=(0.002, 0.011, 0.003, 0.007, 0.005), tokens=(0.013, 0.028, 0.047)
):
    made = [Token(place, text) for place, text in enumerate(prompt + answer)]
    asked, chosen = tuple(made[: len(prompt)]), tuple(made[len(prompt) :])
    steps = tuple(DecodeStage("r", chosen[:n], chosen[n], rows_of(1)) for n in range(1, len(chosen)))
    transfer = TransferStage("r", 120, {}, (), chosen[0]) if steps else None
    prefill = PrefillStage("r", rows_of(len(prompt)), np.zeros(7), chosen[0])
    result = ResultStage("r", answer, RequestTiming(*seconds, tokens))
    return Trace(RequestStage("r", prompt, asked), prefill, transfer, steps, result)


RUNS = [
    Gaps("colocated", [0.1, 0.2, 0.5], [0.011, 0.013, 0.307], [0.17]),
    Gaps("split", [0.1, 0.2, 0.3], [0.011, 0.013, 0.017], [0.17, 0.23]),
]


def test_parts_follow_each_other_and_end_when_the_timing_says():
    trace = made_trace()
    parts, timing = request_parts(trace), trace.result.timing
    assert [part.name for part in parts] == ["queue", "prefill", "decode queue", "transfer", "step 1", "step 2"]
    assert [part.lane for part in parts] == [LANES[place] for place in (0, 1, 0, 2, 3, 3)]
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    by_hand = [0, 0.002, 0.013, 0.016, 0.023, 0.028, 0.047]
    np.testing.assert_allclose([0, *(part.end for part in parts)], by_hand)
    np.testing.assert_allclose([parts[1].end, parts[4].end, parts[5].end], timing.token_seconds)
    assert parts[4].end == pytest.approx(timing.decode_ttft_seconds)


def test_each_part_tells_the_state_at_its_end():
    parts = request_parts(made_trace())
    states = [("".join(part.answer), part.rows, part.rows_there, part.crossed_bytes) for part in parts]
    crossed = ("黄", 5, 5, 120)
    assert states == [("", 0, 0, 0), *[("黄", 5, 0, 0)] * 2, crossed, ("黄河", 6, 6, 120), ("黄河流", 7, 7, 120)]
    assert parts[1].says == "the prefill worker reads 白日依山尽, 5 tokens at once, and answers 黄"
    assert parts[3].says == "5 rows of K and V, 120 bytes, cross to the decode worker"
    assert parts[5].says == "the decode worker reads 河, adds row 7 and answers 流"


def test_a_request_that_ends_with_its_first_token_never_leaves_the_prefill_worker():
    trace = made_trace("白", "黄", (0.002, 0.011, 0.0, 0.0, 0.0), (0.013,))
    parts = request_parts(trace)
    assert [part.name for part in parts] == ["queue", "prefill"]
    assert "1 token at once" in parts[1].says
    assert request_timeline(trace).data["parts"][-1]["end"] == pytest.approx(0.013)


def test_times_that_run_backwards_are_refused():
    with pytest.raises(BadInput, match=r"step 2 takes -0\.01"):
        request_parts(made_trace(tokens=(0.013, 0.028, 0.018)))
    with pytest.raises(BadInput, match="transfer takes"):
        request_parts(made_trace(seconds=(0.002, 0.011, 0.003, -0.007, 0.005)))


def test_the_picture_draws_every_part_in_its_lane_and_colour():
    trace = made_trace()
    axes = draw_timeline(trace).axes[0]
    bars = [
        (round(bar.get_y() + 0.3), bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()).upper())
        for bar in axes.patches
    ]
    colours = [OTHER, PREFILL, OTHER, TRANSFER, DECODE, DECODE]
    for bar, part, colour in zip(bars, request_parts(trace), colours, strict=True):
        assert (LANES[bar[0]], bar[3]) == (part.lane, colour)
        assert bar[1:3] == pytest.approx((part.start * 1e3, (part.end - part.start) * 1e3))
    assert {"黄", "河 流", "120 bytes"} == {text.get_text() for text in axes.texts}
    assert "milliseconds" in axes.get_xlabel()


def data_in(page):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_the_widget_carries_the_parts_and_the_gaps():
    trace = made_trace()
    data = data_in(request_timeline(trace, RUNS)._repr_html_())
    assert [{**part, "answer": tuple(part["answer"])} for part in data["parts"]] == [
        asdict(part) for part in request_parts(trace)
    ]
    assert data["tokens"] == list("白日依山尽黄河流") and data["lanes"] == list(LANES)
    for run, gaps in zip(data["runs"], RUNS, strict=True):
        assert run["gaps"] == [list(pair) for pair in zip(gaps.ends, gaps.seconds, strict=True)]
        assert (run["says"], run["prompts"]) == (summarise_gaps(gaps), gaps.prompts_came)
    assert (data["axes"]["longest"], data["axes"]["last"]) == (0.307, 0.5)


def test_without_gaps_the_timeline_stands_alone():
    shown = request_timeline(made_trace())
    assert shown.data["runs"] == [] and "gaps" not in shown.caption and "<p>" not in shown.still
    with pytest.raises(BadInput, match="run 'split' has no gaps"):
        request_timeline(made_trace(), [RUNS[0], replace(RUNS[1], seconds=[])])


def test_readers_without_scripts_see_every_part_and_every_run():
    trace = made_trace()
    still = html.unescape(request_timeline(trace, RUNS).still)
    lines = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", still)[1:]]
    assert lines[3] == [
        "transfer",
        "link",
        "16.00",
        "23.00",
        "5 rows of K and V, 120 bytes, cross to the decode worker",
    ]
    assert [line[4] for line in lines] == [part.says for part in request_parts(trace)]
    assert all(summarise_gaps(run) in still for run in RUNS)


def test_gaps_are_summarised_by_hand():
    assert summarise_gaps(RUNS[0]) == (  # 99 % of the way: 0.013 + 0.98 x (0.307 - 0.013)
        "colocated: 3 gaps between tokens, 1 prompt came meanwhile; "
        "median 13.00 ms, 99 % within 301.12 ms, longest 307.00 ms."
    )
