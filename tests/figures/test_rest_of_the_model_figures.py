import numpy as np
import pytest
from matplotlib.patches import Circle, Rectangle

from tinyinfer.figures import rest_of_the_model as figures


def drawn(figure):
    figure.draw_without_rendering()  # warnings, such as a missing glyph, are errors in tests
    return figure.axes


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_each_box_spans_the_bytes_of_its_piece():
    pieces, said = [b"\xe5", b"\xb1\xb1", b"\xe6\x97", b"\xa5"], ["", "山", "", "日"]
    (axes,) = drawn(figures.draw_bytes_and_tokens("山日", pieces, [7, 123, 45, 6], said))
    boxes = [box for box in axes.patches if isinstance(box, Rectangle)]
    spans = {
        row: [(round(b.get_x()), round(b.get_x() + b.get_width())) for b in boxes if b.get_y() == row]
        for row in (3, 2, 1)
    }
    assert spans[3] == [(0, 3), (3, 6)]
    assert spans[2] == [(i, i + 1) for i in range(6)]
    assert spans[1] == [(0, 1), (1, 3), (3, 5), (5, 6)]
    labels = [word for word in words(axes) if word]
    assert labels[labels.index("UTF-8 bytes") + 1 :][:6] == ["e5", "b1", "b1", "e6", "97", "a5"]
    assert labels[labels.index("token ids") + 1 :][:4] == ["7", "123", "45", "6"]


def test_a_character_is_shown_under_its_last_token():
    pieces, said = [b"\xe5", b"\xb1\xb1", b"\xe6\x97", b"\xa5"], ["", "山", "", "日"]
    (axes,) = drawn(figures.draw_bytes_and_tokens("山日", pieces, [7, 123, 45, 6], said))
    shown = [(text.get_text(), text.get_position()[0]) for text in axes.texts if text.get_position()[1] < 0.2]
    assert shown == [("山", 2.5), ("日", 5.5)]


def test_the_hands_point_at_position_times_speed():
    positions, speeds = [0, 1, 5], [1.0, 0.1]
    (axes,) = drawn(figures.draw_rope_angles(positions, speeds))
    hands = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 2]
    angles = [np.arctan2(*(tip - root)[::-1]) % (2 * np.pi) for root, tip in hands]
    np.testing.assert_allclose(angles, [(p * s) % (2 * np.pi) for s in speeds for p in positions], atol=1e-12)
    assert [tuple(root) for root, _ in hands] == [(column, -row) for row in range(2) for column in range(3)]
    assert sum(isinstance(patch, Circle) for patch in axes.patches) == 6
    assert {"pair 0\n1 rad", "pair 1\n0.1 rad", "0", "1", "5"} <= set(words(axes))


def test_the_gate_is_drawn_as_given_with_relu_behind():
    z = np.linspace(-5, 3, 17)
    silu = z / (1 + np.exp(-z))
    (axes,) = drawn(figures.draw_silu(z, silu))
    curves = [line for line in axes.lines if len(line.get_xdata()) == 17]
    np.testing.assert_array_equal(curves[0].get_ydata(), np.maximum(z, 0))
    np.testing.assert_array_equal(curves[1].get_xydata(), np.column_stack([z, silu]))
    assert f"lowest, −{-silu.min():.3f}" in words(axes)


def test_the_stream_shows_every_place_under_its_name():
    names, places = ["embedding", "attention 1", "SwiGLU 1"], [1900, 31, 1]
    (axes,) = drawn(figures.draw_stream(names, places))
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 1900], [1, 31], [2, 1]])
    assert words(axes) == ["1,900", "31", "1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    bottom, top = axes.get_ylim()
    assert bottom > top and axes.get_yscale() == "log"  # the first place is on top


@pytest.mark.parametrize("count", [2, 4])
def test_sampling_bars_are_the_probabilities(count):
    reference = np.array([0.5, 0.3, 0.2])
    settings = [reference, np.array([0.7, 0.2, 0.1]), np.array([0.625, 0.375, 0]), np.array([1.0, 0, 0])]
    panels = {f"setting {number}": settings[number] for number in range(count)}
    grid = drawn(figures.draw_sampling(["a", "b", "c"], panels, reference))
    assert [axes.get_title(loc="left") for axes in grid] == list(panels)
    for axes, expected in zip(grid, panels.values(), strict=True):
        hollow, filled = axes.containers
        assert [bar.get_width() for bar in hollow] == reference.tolist()
        assert [bar.get_width() for bar in filled] == expected.tolist()
        assert words(axes) == [f"{p:.2f}" if p else "cut" for p in expected]
    for axes in grid[::2]:  # panels in a row share their names
        assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert grid[0].get_ylim()[0] > grid[0].get_ylim()[1]  # the first is on top
