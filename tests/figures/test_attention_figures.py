import numpy as np
import pytest

from tinyinfer.figures import attention as figures
from tinyinfer.performance import cost

TOKENS = "白日依山"


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def lines(figure):
    return {line.get_label(): line.get_xydata().T for line in figure.axes[0].lines}


def test_bars_are_the_weights_and_the_scores_divided_by_their_sum():
    weights = [0.07, 0.2, 0.53, 0.2]
    figure = figures.draw_softmax(TOKENS, [0, 1, 2, 1], weights)
    softmax, divided = figure.axes[0].containers
    assert (softmax.get_label(), divided.get_label()) == ("softmax", "divided by sum")
    assert [bar.get_height() for bar in softmax] == weights
    assert [bar.get_height() for bar in divided] == [0, 0.25, 0.5, 0.25]
    assert [label.get_text()[0] for label in figure.axes[0].get_xticklabels()] == list(TOKENS)


def test_scale_lines_are_the_given_weights():
    figure = figures.draw_scale([4, 16, 64], [0.4, 0.7, 0.8], [0.21, 0.22, 0.23])
    np.testing.assert_array_equal(lines(figure)["unscaled"], [[4, 16, 64], [0.4, 0.7, 0.8]])
    np.testing.assert_array_equal(lines(figure)["scaled"], [[4, 16, 64], [0.21, 0.22, 0.23]])


def test_mask_panels_show_every_number_and_blacken_only_what_the_mask_forbade():
    queries = np.array([[2.0, 0, -1], [0, 1, 1]])
    masked = np.array([[0.5, -np.inf], [0, 1.25]])
    weights = np.array([[1.0, 0], [0, 1]])
    figure = figures.draw_mask("山日", {"Q": queries, "masked scores": masked, "weights": weights, "V": queries})
    axes = figure.axes[0]
    shown = [text for text in texts(figure) if text[-1].isdigit() or text == "−∞"]
    q = ["2", "0", "−1", "0", "1", "1"]
    assert shown == [*q, "0.5", "−∞", "0", "1.25", "1", "0", "0", "1", *q]
    black = [patch.get_facecolor()[:3] for patch in axes.patches]
    dark = [index for index, colour in enumerate(black) if max(colour) < 0.5]
    assert dark == [7, 11]  # the first row's second score and weight; the zero weight below the diagonal stays
    assert "Q" in texts(figure) and "masked scores" in texts(figure)


@pytest.mark.parametrize(("prompt", "passes"), [(4, 20), (1, 100), (5, 1)])
def test_pass_grid_has_as_many_rows_as_cost_counts(prompt, passes):
    grid = figures.pass_grid(prompt, passes)
    assert grid.shape == (passes, prompt + passes - 1)
    assert (grid == figures.NEW).sum() == cost.kv_projections(prompt, passes, cached=True)
    assert (grid != figures.NOT_YET).sum() == cost.kv_projections(prompt, passes, cached=False)


def test_pass_grid_by_hand():
    new, old, none = figures.NEW, figures.REPEATED, figures.NOT_YET
    assert figures.pass_grid(2, 3).tolist() == [[new, new, none, none], [old, old, new, none], [old, old, old, new]]


def test_passes_are_drawn_from_the_grid():
    grid = figures.pass_grid(4, 3)
    figure = figures.draw_passes("白日依山尽，黄", grid)
    np.testing.assert_array_equal(figure.axes[0].collections[0].get_array().reshape(grid.shape), grid)
    assert texts(figure)[:6] == list("白日依山尽，")
    assert {"new: 6 rows", "repeated: 9 rows"} <= set(texts(figure))


def test_pass_flops_are_drawn_in_millions():
    figure = figures.draw_pass_flops([4, 5, 6], [9e6, 12e6, 15e6], [8e6, 11e6, 14e6], [2e6, 2e6, 3e6])
    np.testing.assert_allclose(lines(figure)["counted"], [[4, 5, 6], [9, 12, 15]])
    np.testing.assert_allclose(lines(figure)["predicted"], [[4, 5, 6], [8, 11, 14]])
    np.testing.assert_allclose(lines(figure)["newest token"], [[4, 5, 6], [2, 2, 3]])
