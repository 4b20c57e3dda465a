import numpy as np
import pytest

from tinyinfer.figures.kv_cache import (
    ASKED_NOW,
    KEPT,
    NOT_NEEDED,
    NOTHING,
    WRITTEN_NOW,
    TokenBytes,
    draw_bytes_per_token,
    draw_bytes_written,
    draw_flops_per_pass,
    draw_nested,
    draw_step,
    step_grid,
    token_bytes,
)
from tinyinfer.performance.shapes import find_shape


def meshes(figure):
    return [np.asarray(mesh.get_array()) for mesh in figure.axes[0].collections]


def curves(figure):
    return {(line.get_label(), line.get_marker()): line.get_xydata() for line in figure.axes[0].lines}


def test_a_new_token_asks_one_row_of_scores_and_writes_one_row_of_k_and_v():
    grid = step_grid(3)
    assert grid["Q"].tolist() == [[NOT_NEEDED], [NOT_NEEDED], [ASKED_NOW]]
    assert grid["scores"].tolist() == [
        [NOT_NEEDED, NOTHING, NOTHING],
        [NOT_NEEDED, NOT_NEEDED, NOTHING],
        [ASKED_NOW, ASKED_NOW, ASKED_NOW],
    ]
    assert grid["K"].tolist() == grid["V"].tolist() == [[KEPT], [KEPT], [WRITTEN_NOW]]


def test_the_step_figure_shows_its_grid_and_names_every_token_twice():
    figure = draw_step("白日依山尽")
    for drawn, states in zip(meshes(figure), step_grid(5).values(), strict=True):
        np.testing.assert_array_equal(drawn, states)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert all(texts.count(token) == 2 for token in "白日依山尽")


def test_the_nested_figure_shows_the_size_of_every_number_in_the_cache():
    generator = np.random.default_rng(0)
    nested = {
        f"layer_{layer}": {
            f"head_{head}": {name: generator.normal(size=(2, 5)).astype(np.float32) for name in "KV"}
            for head in range(2)
        }
        for layer in range(3)
    }
    leaves = [rows for heads in nested.values() for pair in heads.values() for rows in pair.values()]
    largest = max(np.abs(rows).max() for rows in leaves)
    drawn = meshes(draw_nested(nested, "白日"))
    assert len(drawn) == 3 * 2 * 2
    for shown, rows in zip(drawn, leaves, strict=True):
        np.testing.assert_allclose(shown**2 * largest, np.abs(rows), rtol=1e-5)


def test_an_empty_looking_cache_of_zeros_can_be_drawn():
    nested = {"layer_0": {"head_0": {"K": np.zeros((1, 2)), "V": np.zeros((1, 2))}}}
    assert all(not shown.any() for shown in meshes(draw_nested(nested, "白")))


@pytest.mark.parametrize(
    ("name", "actual", "if_mha"),
    [
        ("llama-2-7b", 524_288, 524_288),
        ("llama-3-8b", 131_072, 524_288),
        ("llama-3-70b", 327_680, 2_621_440),
        ("qwen3-0.6b", 114_688, 229_376),
    ],
)
def test_bytes_per_token_are_the_published_ones(name, actual, if_mha):
    assert token_bytes(find_shape(name)) == TokenBytes(name, actual, if_mha)


def test_bytes_per_token_are_drawn_where_they_belong():
    sizes = [TokenBytes("one", 700, 2100), TokenBytes("two", 110, 110), TokenBytes("three", 1300, 9100)]
    figure = draw_bytes_per_token(sizes)
    if_mha, actual = (line.get_xydata().tolist() for line in figure.axes[0].lines)
    assert actual == [[700, 0], [110, 1], [1300, 2]]
    assert if_mha == [[2100, 0], [110, 1], [9100, 2]]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["one", "two", "three"]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"700", "110", "1,300", "÷ 3", "÷ 7"} <= set(texts)
    assert "÷ 1" not in texts


@pytest.mark.parametrize(("draw", "markers"), [(draw_flops_per_pass, "^o"), (draw_bytes_written, "sD")])
def test_predicted_and_measured_lines_hold_their_data(draw, markers):
    lengths, data = [1, 2, 5], [[11e6, 13e6, 17e6], [19e6, 23e6, 29e6], [2e6, 3e6, 5e6], [5e6, 7e6, 9e6]]
    drawn = curves(draw(lengths, *data))
    names = [(label, marker) for marker in markers for label in ("predicted", "measured")]
    for name, values in zip(names, data, strict=True):
        np.testing.assert_array_equal(drawn[name], np.column_stack([lengths, values]))
