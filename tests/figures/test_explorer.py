"""The explorer's Python side: what travels in the page, what readers without scripts see, and its words by hand."""

import base64
import html
import io
import json
import re
from dataclasses import replace

import pytest

from tinyinfer import BadInput
from tinyinfer.figures import widgets
from tinyinfer.figures.explorer import Choice, explored_rows, roofline_explorer, summarise
from tinyinfer.figures.roofline import draw_roofline, predicted_point
from tinyinfer.performance.hardware import HARDWARE, Hardware, find_hardware
from tinyinfer.performance.prediction import predict_phases
from tinyinfer.performance.shapes import SHAPES, find_shape

LLAMA, H200 = find_shape("llama-3-8b"), find_hardware("H200 SXM")


@pytest.fixture(scope="module")
def shown():
    return roofline_explorer()._repr_html_()


def test_every_shape_and_every_device_travels_with_what_the_arithmetic_needs(shown):
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', shown, re.DOTALL)[1])
    assert [model["name"] for model in data["models"]] == list(SHAPES)
    assert [device["name"] for device in data["devices"]] == list(HARDWARE)
    for model in data["models"]:
        assert all(getattr(SHAPES[model["name"]], field) == value for field, value in model.items())
    for device in data["devices"]:
        known = HARDWARE[device["name"]]
        assert dict(known.flops_per_second) == device["flops_per_second"]
        assert (known.bytes_per_second, known.memory_bytes) == (device["bytes_per_second"], device["memory_bytes"])
    assert Choice(**data["start"]) == Choice()


def test_without_scripts_the_roofline_and_the_table_of_the_start_are_there(shown):
    start = Choice()
    still = re.search(r'<div class="still">(.*?)</div></div>', shown, re.DOTALL)[1]
    picture = base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', still)[1])
    phases = predict_phases(LLAMA, H200, start.prompt, start.context, [start.batch])
    expected = io.BytesIO()
    figure = draw_roofline(H200, "bf16", [predicted_point(phase) for phase in phases])
    figure.savefig(expected, format="svg", metadata={"Date": None, "Creator": None})
    assert picture == expected.getvalue()
    alt = html.unescape(re.search(r'<img alt="([^"]+)"', still)[1])
    assert alt == f"Roofline. {summarise(LLAMA, H200, start)}"
    lines = re.findall(r"<tr>(.*?)</tr>", still)[1:]
    cells = [tuple(map(html.unescape, re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line))) for line in lines]
    assert cells == explored_rows(LLAMA, H200, start)


def test_the_sentence_of_a_decode_step_worked_by_hand():
    # One sequence, one key. The pass reads every weight but the embedding table (128,256 x 4,096), and writes a row.
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    row = 2 * 32 * 8 * 128 * 2
    milliseconds = (weights + 2 * row) / 4.8e12 * 1e3
    words = summarise(LLAMA, H200, Choice(batch=1, prompt=1, context=1))
    assert f"prefill of 1 token is memory-bound, TTFT at least {milliseconds:.2f} ms;" in words
    assert f"a decode step at context 1 is memory-bound, TPOT at least {milliseconds:.2f} ms;" in words
    assert words.startswith("llama-3-8b in bf16 on H200 SXM, batch 1: ")
    assert words.endswith("memory: fits, 125 GB left of 141 GB.")  # 141 - 16.06


def value_of(rows, name):
    return next(cells for first, *cells in rows if first == name)


def test_the_table_names_the_batch_that_binds_or_why_there_is_none():
    def compute_bound(hardware, context):
        rows = explored_rows(LLAMA, hardware, Choice(context=context))
        return value_of(rows, "decode is compute-bound")

    assert compute_bound(H200, 128) == ["from batch 267"]
    assert compute_bound(H200, 4096) == ["at no batch"]
    assert compute_bound(find_hardware("Apple M2 Ultra"), 128) == ["unknown, no FLOP/s published"]


def test_memory_counts_the_longer_of_prompt_and_context():
    for choice in (Choice(prompt=5003, context=7), Choice(prompt=7, context=5003)):
        rows = explored_rows(LLAMA, H200, choice)
        assert value_of(rows, "weights + KV cache") == ["16.1 GB + 5.25 GB"]  # 8 x 5,003 x 131,072 bytes
        assert value_of(rows, "largest batch that fits") == ["190"]  # 124.94e9 / (5,003 x 131,072)


def test_what_does_not_fit_says_by_how_much_and_what_is_unknown_is_said_to_be():
    large = find_shape("llama-3-70b")
    rows = explored_rows(large, H200, Choice(batch=1))
    assert value_of(rows, "do they fit?") == ["does not fit, 1.45 GB short of 141 GB"]
    assert value_of(rows, "largest batch that fits") == ["0"]
    rows = explored_rows(large, find_hardware("i9-13900K"), Choice(batch=1))
    assert value_of(rows, "do they fit?") == ["142 GB needed, size unknown"]
    assert value_of(rows, "largest batch that fits") == ["unknown"]


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"model": "gpt-5"}, "model is 'gpt-5'; the explorer has: llama-2-7b"),
        ({"gpu": "H300"}, "gpu is 'H300'; the explorer has: V100 SXM2 32GB"),
        ({"gpu": "V100 SXM2 32GB"}, "no bf16 peak is known for V100 SXM2 32GB; known: fp32, fp16"),
        ({"dtype": "bf17"}, "bf17"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 1025}, "batch is 1025; the explorer goes up to 1024"),
        ({"prompt": 131_073}, "prompt is 131073"),
        ({"context": 2.5}, "context is 2.5"),
    ],
)
def test_a_start_that_cannot_be_shown_is_refused(wrong, names):
    with pytest.raises(BadInput, match=re.escape(names)):
        roofline_explorer(replace(Choice(), **wrong))


def test_other_models_and_devices_can_be_explored():
    floor = Hardware("mine", {"fp32": 7e11}, 3e10, 11e9, "a test", launch_floor_seconds=5e-6)
    small = find_shape("smollm2-135m")
    explorer = roofline_explorer(Choice("smollm2-135m", "mine", "fp32"), [small], [floor])
    assert explorer.data["devices"][0]["launch_floor_seconds"] == 5e-6
    assert "smollm2-135m in fp32 on mine, batch 8" in explorer.still


def test_the_explorer_has_styles_of_its_own_and_others_do_not_carry_them(shown):
    assert ".roofline svg" in shown
    assert ".roofline svg" not in widgets.cache_stepper("abc", 1, [LLAMA])._repr_html_()
