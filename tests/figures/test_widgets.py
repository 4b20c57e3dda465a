import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tinyinfer import BadInput
from tinyinfer.figures import widgets
from tinyinfer.figures.attention import NEW, attention_steps
from tinyinfer.model import numpy_ops
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance import cost

TOY = ModelConfig("toy", layers=3, model_dim=14, heads=4, kv_heads=2, head_dim=6, ffn_dim=17, vocab=23, max_context=99)
BIG = ModelConfig("big", layers=5, model_dim=26, heads=6, kv_heads=3, head_dim=10, ffn_dim=41, vocab=47, max_context=99)


def page(widget):
    return widget._repr_html_()


def data_in(page):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def still_rows(page):
    still = re.search(r'<div class="still">(.*?)</div></div>', page, re.DOTALL)[1]
    lines = re.findall(r"<tr>(.*?)</tr>", still)[1:]
    return [[html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line)] for line in lines]


@pytest.fixture(scope="module")
def vectors():
    draw = np.random.default_rng(2).standard_normal
    return [draw((5, 3)).astype(np.float32) for _ in "qkv"]


@pytest.fixture(scope="module")
def stepper():
    return widgets.cache_stepper("abcdefg", 3, [TOY, BIG])


def test_attention_steps_end_in_what_the_package_computes(vectors):
    steps = attention_steps(*vectors)
    package = numpy_ops.attention(*(rows[:, None] for rows in vectors))[:, 0]
    np.testing.assert_allclose(steps.mixed, package, atol=1e-6)
    assert (np.isneginf(steps.masked) == ~np.tri(5, dtype=bool)).all()


def test_attention_steps_can_leave_out_mask_and_scale(vectors):
    queries, keys, values = vectors
    steps = attention_steps(*vectors, masked=False, scaled=False)
    by_hand = np.exp(queries @ keys.T)
    by_hand /= by_hand.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(steps.weights, by_hand, rtol=1e-5)
    np.testing.assert_allclose(steps.mixed, by_hand @ values, rtol=1e-5)


def test_the_attention_stepper_carries_the_given_vectors_and_the_computed_weights(vectors):
    shown = page(widgets.attention_stepper("abcde", *vectors))
    data = data_in(shown)
    for name, rows in zip(("queries", "keys", "values"), vectors, strict=True):
        np.testing.assert_array_equal(np.array(data[name], np.float32), rows)
    steps = attention_steps(*vectors)
    for row, cells in enumerate(still_rows(shown)):
        assert cells[0] == "abcde"[row]
        assert cells[1:6] == [f"{weight:.3f}" for weight in steps.weights[row, : row + 1]] + ["0"] * (4 - row)
        assert cells[6] == " ".join(f"{number:.3f}" for number in steps.mixed[row])


@pytest.mark.parametrize(("prompt", "passes"), [(1, 7), (4, 20), (11, 3)])
def test_totals_of_the_passes_are_the_costs_of_both_ways_to_generate(prompt, passes):
    steps = widgets.cache_passes(BIG, prompt, passes, bytes_per_number=4)
    last = steps[-1]
    naive = cost.naive_generation_cost(BIG, prompt, passes, weight_bytes=4)
    assert (last.naive_flops_so_far, last.naive_bytes_so_far) == (naive.flops, naive.bytes_moved)
    cached = cost.cached_generation_cost(BIG, prompt, passes, weight_bytes=4, kv_bytes=4)
    assert last.flops_so_far == cached.flops
    assert sum(step.bytes_moved for step in steps) == last.bytes_so_far == cached.bytes_moved
    assert last.naive_rows_so_far == cost.kv_projections(prompt, passes, cached=False)
    assert last.cached_rows_so_far == sum(step.reads for step in steps) == prompt + passes - 1 == last.seen
    assert last.bytes_held == last.seen * BIG.kv_bytes_per_token(4)


def test_the_cache_stepper_carries_every_pass_of_every_model_and_the_grid_of_the_figure(stepper):
    data = data_in(page(stepper))
    assert data["tokens"] == list("abcdefg")
    assert [model["name"] for model in data["models"]] == ["toy", "big"]
    for model, config in zip(data["models"], (TOY, BIG), strict=True):
        assert [widgets.CachePass(**each) for each in model["passes"]] == widgets.cache_passes(config, 3, 4)
    assert [line.count(NEW) for line in data["grid"]] == [3, 1, 1, 1]


def test_readers_without_scripts_see_the_same_counts(stepper):
    passes = widgets.cache_passes(TOY, 3, 4)
    for number, (cells, each) in enumerate(zip(still_rows(page(stepper)), passes, strict=True), 1):
        counts = (each.naive_flops_so_far, each.flops_so_far)
        counts += (each.naive_bytes_so_far, each.bytes_so_far, each.bytes_held)
        assert cells == [str(number), *map(widgets.short, counts)]


def test_the_other_focus_shows_what_each_phase_moves():
    shown = page(widgets.cache_stepper("abcdefg", 3, [TOY], 4, focus="phases"))
    step = widgets.cache_passes(TOY, 3, 4, 4)[2]
    counts = (step.reads, step.flops, step.bytes_moved, step.intensity, step.bytes_held)
    assert still_rows(shown)[2] == ["3", *map(widgets.short, counts)]
    assert 'id="widget-phases"' in shown


@pytest.mark.parametrize("prompt", [0, 7, -1])
def test_a_prompt_that_leaves_nothing_to_do_is_refused(prompt):
    with pytest.raises(BadInput, match=f"prompt is {prompt}"):
        widgets.cache_stepper("abcdefg", prompt, [TOY])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (6144, "6,144"),
        (99_999, "99,999"),
        (100_000, "100 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (8_873_984, "8.87 M"),
        (4.05e12, "4.05 T"),
        (0.538, "0.538"),
        (1.125, "1.13"),
        (117.853, "118"),
        (5.0, "5"),
        (999.7, "1.00 k"),
        (1234.5, "1.23 k"),
    ],
)
def test_numbers_are_shortened_to_three_digits(number, words):
    assert widgets.short(number) == words


def test_text_in_the_data_can_neither_end_the_script_nor_enter_the_page(vectors):
    tokens = ["</script>", "<b>", "&", "d", "e"]
    shown = page(widgets.attention_stepper(tokens, *vectors))
    assert data_in(shown)["tokens"] == tokens
    assert "<b>" not in shown and still_rows(shown)[0][0] == "</script>"


def test_a_widget_asks_no_other_host_and_is_the_same_at_every_run(stepper):
    assert page(stepper) == page(widgets.cache_stepper("abcdefg", 3, [TOY, BIG]))
    assert "http" not in page(stepper) and "import" not in page(stepper)
    assert repr(stepper) == "<Widget widget-cache>"


def test_all_scripts_together_stay_small():
    scripts = [*widgets._WEB.glob("*.js"), Path(__file__).parents[2] / "book/_static/fonts.js"]
    assert {script.stem for script in scripts} >= {"widgets", "attention", "cache"}
    assert sum(script.stat().st_size for script in scripts) < 40_000
