import numpy as np
from matplotlib.collections import PolyCollection

from tinyinfer.figures.step_times import (
    Step,
    TpotCurve,
    draw_step_breakdown,
    draw_tpot_against_context_and_batch,
    draw_ttft_against_prompt,
)
from tinyinfer.figures.style import DECODE, PREFILL
from tinyinfer.performance.work import Limits

PROMPTS = [16, 64, 256]
LIMITS = [Limits(0.001, 0.003, 0.0005), Limits(0.004, 0.003, 0.0005), Limits(0.016, 0.0032, 0.0005)]


def lines_by_label(axes):
    return {line.get_label(): line for line in axes.lines}


def test_ttft_curves_are_the_limits_and_the_larger_of_two_plus_launches():
    lines = lines_by_label(draw_ttft_against_prompt(PROMPTS, LIMITS, [0.005, 0.006, 0.02]).axes[0])
    expected = {
        "compute": [1, 4, 16],
        "memory": [3, 3, 3.2],
        "launch": [0.5] * 3,
        "predicted": [3.5, 4.5, 16.5],
        "measured": [5, 6, 20],
    }
    assert set(lines) == set(expected)
    for name, milliseconds in expected.items():
        assert list(lines[name].get_xdata()) == PROMPTS
        np.testing.assert_allclose(lines[name].get_ydata(), milliseconds)
    assert lines["predicted"].get_linestyle() == "--" and lines["predicted"].get_fillstyle() == "none"
    assert lines["measured"].get_linestyle() == "-" and lines["measured"].get_fillstyle() == "full"
    assert lines["predicted"].get_color() == lines["measured"].get_color() == PREFILL


def test_a_floor_that_nobody_measured_is_no_line_and_nothing_measured_none_either():
    limits = [Limits(each.compute_seconds, each.memory_seconds, 0.0) for each in LIMITS]
    axes = draw_ttft_against_prompt(PROMPTS, limits).axes[0]
    assert set(lines_by_label(axes)) == {"compute", "memory", "predicted"}
    assert not any("measured" in text.get_text() for text in axes.texts)


def test_tpot_panels_stack_the_cache_upon_the_weights():
    curves = [
        TpotCurve(1, [5, 7, 11], [0.003] * 3, [0.001, 0.002, 0.004], [0.004, 0.005, 0.007], [0.005, 0.006, 0.008]),
        TpotCurve(13, [5, 7, 11], [0.003] * 3, [0.002, 0.004, 0.008], [0.005, 0.007, 0.011]),
    ]
    figure = draw_tpot_against_context_and_batch(curves)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["batch 1", "batch 13"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert figure.axes[0].get_ylim()[1] > 11
    for axes, curve in zip(figure.axes, curves, strict=True):
        weights, cache = (area for area in axes.collections if isinstance(area, PolyCollection))
        assert weights.get_datalim(axes.transData).y1 == 3
        corners = cache.get_paths()[0].vertices
        for context, seconds in zip(curve.contexts, curve.kv_seconds, strict=True):
            heights = corners[corners[:, 0] == context, 1]
            np.testing.assert_allclose((heights.min(), heights.max()), (3, 3 + 1e3 * seconds))
        lines = lines_by_label(axes)
        assert set(lines) == ({"predicted", "measured"} if curve.measured else {"predicted"})
        np.testing.assert_allclose(lines["predicted"].get_ydata(), 1e3 * np.array(curve.predicted))
        assert lines["predicted"].get_color() == DECODE and lines["predicted"].get_fillstyle() == "none"


def test_each_bar_adds_up_to_the_step_and_parts_that_are_not_there_are_not_drawn():
    steps = [
        Step("eager", Limits(0.001, 0.003, 0.004), 0.011),
        Step("graph", Limits(0.005, 0.003, 0.0), 0.005),
    ]
    axes = draw_step_breakdown(steps).axes[0]
    bars = {(bars.get_label(), round(bar.get_y() + 0.28)): bar for bars in axes.containers for bar in bars}
    spans = {key: (bar.get_x(), bar.get_width()) for key, bar in bars.items()}
    expected = {
        ("memory", 0): (0, 3),
        ("launches", 0): (3, 4),
        ("not explained", 0): (7, 4),
        ("memory", 1): (0, 3),
        ("compute beyond it", 1): (3, 2),
    }
    assert set(spans) == set(expected)
    for key, span in expected.items():
        np.testing.assert_allclose(spans[key], span)
    assert [line.get_xdata()[0] for line in axes.lines] == [11, 5]
    assert [text.get_text() for text in axes.texts] == ["11 ms", "5 ms"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["eager", "graph"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first step stands at the top
