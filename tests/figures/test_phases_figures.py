import numpy as np
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from tinyinfer.figures import phases
from tinyinfer.figures.style import DECODE, KV_CACHE, PREFILL
from tinyinfer.performance.hardware import Hardware


def filled_cells(axes, colour):
    patches = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    filled = [patch for patch in patches if to_hex(patch.get_facecolor()).upper() == colour]
    return sorted((round(patch.get_y() + 0.42), round(patch.get_x() + 0.46)) for patch in filled)


def lines_by_label(axes):
    return {line.get_label(): line for line in axes.lines}


def test_a_pass_fills_the_positions_that_it_reads():
    passes = [phases.Pass(0, list("白日依山"), "尽"), phases.Pass(4, ["尽"], "，"), phases.Pass(5, ["，"], "黄")]
    axes = phases.draw_passes(passes).axes[0]
    assert filled_cells(axes, PREFILL) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert filled_cells(axes, DECODE) == [(1, 4), (2, 5)]
    kept = [
        (round(p.get_y() + 0.42), round(p.get_x() + 0.46))
        for p in axes.patches
        if to_hex(p.get_edgecolor()).upper() == KV_CACHE
    ]
    assert kept == [(1, column) for column in range(4)] + [(2, column) for column in range(5)]
    assert {"尽", "，", "黄", "prefill", "decode step 1", "decode step 2"} <= {text.get_text() for text in axes.texts}


def test_mask_pictures_show_the_masks_that_they_are_given():
    masks = [np.tri(2, 5, 3, dtype=bool), np.tri(3, 3, dtype=bool), np.ones((1, 7), bool)]
    pictures = [
        phases.MaskPicture(f"mask {i}", m, list("日依山")[: len(m)], list("白日依山尽，黄")[: m.shape[1]])
        for i, m in enumerate(masks)
    ]
    figure = phases.draw_masks(pictures)
    assert len(figure.axes) == 3
    for axes, mask in zip(figure.axes, masks, strict=True):
        assert filled_cells(axes, KV_CACHE) == [tuple(place) for place in np.argwhere(mask).tolist()]


def test_skipped_attention_bars_are_as_high_as_the_gaps():
    axes = phases.draw_skipped_attention([0.0, 0.2, 0.3], [0.0, 0.5, 0.7]).axes[0]
    keys, values = axes.containers
    assert [bar.get_height() for bar in keys] == [0.0, 0.2, 0.3]
    assert [bar.get_height() for bar in values] == [0.0, 0.5, 0.7]


def test_latency_curves_are_the_data_and_predictions_are_dashed_and_hollow():
    prompts = [16, 64, 256]
    ttft, tpot = phases.Latencies([0.1, 0.2, 0.8], [0.2, 0.3, 1.0]), phases.Latencies([0.03] * 3, [0.04, 0.04, 0.05])
    lines = lines_by_label(phases.draw_latencies(prompts, ttft, tpot).axes[0])
    for name, latencies, colour in (("TTFT", ttft, PREFILL), ("TPOT", tpot, DECODE)):
        for kind, seconds in (("predicted", latencies.predicted), ("measured", latencies.measured)):
            line = lines[f"{name} {kind}"]
            assert (list(line.get_xdata()), list(line.get_ydata())) == (prompts, list(seconds))
            assert line.get_color() == colour
            assert line.get_linestyle() == ("--" if kind == "predicted" else "-")
            assert line.get_fillstyle() == ("none" if kind == "predicted" else "full")


def test_the_roof_is_the_smaller_of_both_limits_and_points_stand_where_they_were_put():
    machine = Hardware("a machine", {"fp32": 1e11}, 2e10, None, "made up for this test")
    points = [phases.RooflinePoint("prefill", 200.0, 1e11, 6e10), phases.RooflinePoint("decode", 0.5, 1e10, 9e9)]
    axes = phases.draw_phases_roofline(machine, "fp32", points).axes[0]
    lines = lines_by_label(axes)
    x, y = lines["roof"].get_data()
    np.testing.assert_allclose(y, np.minimum(1e11, 2e10 * np.asarray(x)))
    assert 5.0 in x
    for point in points:
        for kind in ("predicted", "measured"):
            line = lines[f"{point.phase} {kind}"]
            assert (line.get_xdata()[0], line.get_ydata()[0]) == (point.intensity, getattr(point, kind))
            assert line.get_fillstyle() == ("none" if kind == "predicted" else "full")
    assert (axes.get_xlim(), axes.get_ylim()) == (phases.INTENSITY_LIMITS, phases.RATE_LIMITS)
