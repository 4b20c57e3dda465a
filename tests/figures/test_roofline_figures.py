from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from tinyinfer.errors import BadInput
from tinyinfer.figures.roofline import Point, draw_roofline, measured_point, predicted_point
from tinyinfer.figures.style import DECODE, INTENSITY_LIMITS, PREFILL, RATE_LIMITS
from tinyinfer.performance.hardware import Hardware, find_hardware
from tinyinfer.performance.prediction import predict_decode, predict_phases
from tinyinfer.performance.shapes import find_shape

MACHINE = Hardware("a machine", {"fp32": 1e11}, 2e10, None, "made up for this test")
H200, LLAMA = find_hardware("H200"), find_shape("llama-3-8b")


def lines_by_label(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def texts(figure):
    return [text for text in figure.axes[0].texts if text.get_text()]


def test_the_roof_is_the_smaller_of_both_limits_and_the_ridge_is_named():
    figure = draw_roofline(MACHINE, "fp32", [])
    axes = figure.axes[0]
    x, y = lines_by_label(figure)["roof"].get_data()
    np.testing.assert_allclose(y, np.minimum(1e11, 2e10 * np.asarray(x)))
    assert 5.0 in x
    assert (axes.get_xlim(), axes.get_ylim()) == (INTENSITY_LIMITS, RATE_LIMITS)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    said = {text.get_text() for text in texts(figure)}
    assert said == {"a machine, fp32", "20.0 GB/s", "100 GFLOP/s", "ridge: 5 FLOP per byte"}


def test_points_stand_where_they_were_put_predicted_hollow_and_measured_filled():
    points = [
        Point("prompt 512", "prefill", 200.0, 1e11),
        Point("prompt 512", "prefill", 200.0, 6e10, measured=True),
        Point("batch 1", "decode", 0.5, 1e10),
        Point("batch 1", "decode", 0.5, 9e9, measured=True),
    ]
    lines = lines_by_label(draw_roofline(MACHINE, "fp32", points))
    for point in points:
        line = lines[f"{point.phase}, {point.label}, {'measured' if point.measured else 'predicted'}"]
        assert (line.get_xdata()[0], line.get_ydata()[0]) == (point.intensity, point.flops_per_second)
        assert line.get_fillstyle() == ("full" if point.measured else "none")
        assert line.get_marker() == {"prefill": "^", "decode": "o"}[point.phase]
        assert line.get_color() == {"prefill": PREFILL, "decode": DECODE}[point.phase]
    gap = lines["decode, batch 1, gap"]
    assert gap.get_linestyle() == "--" and sorted(gap.get_ydata()) == [9e9, 1e10]


def test_a_prediction_and_a_measurement_of_it_share_their_work():
    step = predict_decode(LLAMA, H200, 128, batch=3)
    assert predicted_point(step) == Point("batch 3", "decode", step.work.intensity, step.work.flops / step.seconds)
    measured = measured_point(step, 2 * step.seconds, "mine")
    assert measured == Point("mine", "decode", step.work.intensity, step.work.flops / step.seconds / 2, measured=True)


@pytest.mark.parametrize("hardware", ["H200", "M1 Pro", "L4"])
@pytest.mark.parametrize("slower", [None, 1.3, 4])
def test_names_cover_neither_each_other_nor_a_marker(hardware, slower):
    predictions = predict_phases(LLAMA, find_hardware(hardware), 2048, 4096, [1, 8, 64])
    points = [predicted_point(prediction) for prediction in predictions]
    if slower:
        points += [measured_point(prediction, slower * prediction.seconds) for prediction in predictions]
    figure = draw_roofline(find_hardware(hardware), "bf16", points)
    figure.draw_without_rendering()
    frame, named = figure.axes[0].get_window_extent(), texts(figure)
    # An annotation's own extent includes the line to its point; here the words alone count.
    boxes = [Text.get_window_extent(text) for text in named if not text.get_rotation()]
    for index, box in enumerate(boxes):
        assert all(not box.overlaps(other) for other in boxes[index + 1 :])
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0
        for point in points:
            place = figure.axes[0].transData.transform((point.intensity, point.flops_per_second))
            assert not box.contains(*place)
    assert {"prefill, batch 1", "decode, batch 1", "batch 8", "batch 64"} <= {text.get_text() for text in named}


def test_a_machine_without_flops_has_only_the_slope():
    apple = find_hardware("M1 Pro")
    figure = draw_roofline(apple, "bf16", [])
    x, y = lines_by_label(figure)["roof"].get_data()
    np.testing.assert_allclose(y, 200e9 * np.asarray(x))
    assert "ridge" not in lines_by_label(figure)
    assert "no FLOP/s published" in {text.get_text() for text in texts(figure)}


def test_another_roof_may_stand_behind():
    figure = draw_roofline(MACHINE, "fp32", [], behind=replace(MACHINE, name="another", bytes_per_second=1e10))
    x, y = lines_by_label(figure)["another"].get_data()
    np.testing.assert_allclose(y, np.minimum(1e11, 1e10 * np.asarray(x)))
    assert "another" in {text.get_text() for text in texts(figure)}


def test_a_point_beyond_the_axes_stands_at_their_edge_and_says_where_it_belongs():
    figure = draw_roofline(MACHINE, "fp32", [Point("batch 9", "prefill", 730_000.0, 1e11)])
    line = lines_by_label(figure)["prefill, batch 9, predicted"]
    assert (line.get_xdata()[0], line.get_ydata()[0]) == (INTENSITY_LIMITS[1], 1e11)
    assert any("at 730,000 FLOP/byte" in text.get_text() for text in texts(figure))


def test_a_dtype_that_the_machine_lacks_is_refused():
    with pytest.raises(BadInput, match="no bf16 peak is known for a machine; known: fp32"):
        draw_roofline(MACHINE, "bf16", [])


def test_a_figure_is_saved_the_same_twice(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_roofline(MACHINE, "fp32", [Point("batch 1", "decode", 0.5, 1e10)]).save(tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    with pytest.raises(BadInput, match="ends in neither"):
        draw_roofline(MACHINE, "fp32", []).save(tmp_path / "one.pdf")
