import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

import tinyinfer
from tinyinfer.figures import request as figures
from tinyinfer.figures.style import DECODE, PREFILL, TRANSFER
from tinyinfer.performance.hardware import find_hardware
from tinyinfer.performance.shapes import find_shape
from tinyinfer.performance.transfer import LINKS, split_cases
from tinyinfer.serving.router import Router
from tinyinfer.serving.workers import DecodeWorker, PrefillWorker


class NearPrefill:
    """A prefill worker of this process."""

    def __init__(self, model):
        self.name, self.worker = "prefill 0", PrefillWorker(model)

    def prefill(self, order, deadline):
        return self.worker.prefill(order)


class NearDecode:
    """A decode worker of this process."""

    def __init__(self, model):
        self.name, self.worker = "decode 0", DecodeWorker(model, slots=32)

    def receive(self, order, payload, deadline):
        return self.worker.receive(order, lambda stopped: payload)

    def decode(self, request_id, deadline):
        return self.worker.decode(request_id)


def walk(model, **options):
    router = Router(model.config, model.tokenizer, [NearPrefill(model)], [NearDecode(model)], slots=32)
    return router.trace("写诗", **options)


@pytest.fixture(scope="module")
def toy():
    return tinyinfer.load("toy")


@pytest.fixture(scope="module")
def trace(toy):
    return walk(toy, max_new_tokens=8)


def words(axes):
    return [text.get_text() for text in axes.texts]


def colours(axes, kind):
    patches = [patch for patch in axes.patches if isinstance(patch, kind)]
    return [to_hex(patch.get_facecolor()).upper() for patch in patches]


def test_the_walk_shows_every_pass_and_the_rows_after_it(trace):
    axes = figures.draw_walk(trace).axes[0]
    passes = ["写 诗 → 秋", "秋 → 天", "天 → 的", "的 → 诗", "诗 → <eos>"]
    assert [word for word in words(axes) if "→" in word] == passes
    assert [int(word) for word in words(axes) if word.isdigit()] == [2, 2, 3, 4, 5, 6]
    assert "2 rows of K and V,\n256 bytes" in words(axes)
    assert "reply: 秋天的诗" in words(axes)
    boxes = colours(axes, FancyBboxPatch)
    assert (boxes.count(PREFILL), boxes.count(DECODE), boxes.count(TRANSFER)) == (2, 2 * 4, 1)


def test_the_transfer_is_a_dash_dot_arrow_and_no_other_is(trace):
    axes = figures.draw_walk(trace).axes[0]
    arrows = [text.arrow_patch for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    dashed = [arrow for arrow in arrows if arrow.get_linestyle() == "dashdot"]
    assert [to_hex(arrow.get_edgecolor()).upper() for arrow in dashed] == [TRANSFER]


def test_a_request_that_ends_with_its_first_token_has_no_transfer(toy):
    axes = figures.draw_walk(walk(toy, max_new_tokens=1)).axes[0]
    boxes = colours(axes, FancyBboxPatch)
    assert (boxes.count(DECODE), boxes.count(TRANSFER)) == (0, 0)
    assert "reply: 秋" in words(axes)


def test_joined_rows_are_the_cache_of_an_undivided_session(toy, trace):
    session = toy.start(capacity=6)
    session.prefill(toy.tokenizer.encode("写诗"))
    for token in toy.tokenizer.encode("秋天的诗"):
        session.decode_step(token)
    joined = figures.join_rows(trace)
    for layer, heads in session.cache.as_nested().items():
        for head, kinds in heads.items():
            for kind, block in kinds.items():
                np.testing.assert_allclose(joined[layer][head][kind], block, atol=1e-6)


def test_the_page_holds_every_number_and_the_line_stands_under_the_rows_that_crossed(trace):
    axes = figures.draw_cache_page(trace).axes[0]
    joined = figures.join_rows(trace)
    blocks = [block for heads in joined.values() for kinds in heads.values() for block in kinds.values()]
    expected = [f"{round(float(number), 2) + 0.0:.2f}" for block in blocks for number in block.flat]
    shown = [word.replace("−", "-") for word in words(axes)]
    assert [word for word in shown if word.lstrip("-").replace(".", "", 1).isdigit()] == expected
    assert len(expected) == 2 * 2 * 2 * 6 * 4
    titles = [f"layer_{layer}  head_{head}  {kind}" for layer in (0, 1) for head in (0, 1) for kind in "KV"]
    assert [word for word in shown if word.startswith("layer_")] == titles
    tables = [text.get_position()[1] for text in axes.texts if text.get_text().startswith("layer_")]
    lines = [line for line in axes.lines if line.get_linestyle() == "-."]
    tops = [line.get_ydata()[0] for line in lines[: len(tables)]]
    np.testing.assert_allclose(np.subtract(tops, tables), 2 + 0.25)
    assert {line.get_color() for line in lines} == {TRANSFER}
    assert shown.count("▲") == 8 * 2 and shown.count("●") == 8 * 4


def test_no_number_of_the_page_may_round_otherwise_on_another_processor(trace):
    """Cells show these numbers with two digits and are compared character by character."""
    joined = figures.join_rows(trace)
    blocks = [block for heads in joined.values() for kinds in heads.values() for block in kinds.values()]
    numbers = np.concatenate([block.ravel() for block in [*blocks, trace.prefill.first_token_logits]]).astype(float)
    distance = np.abs((np.abs(numbers) * 100) % 1 - 0.5) / 100
    assert distance.min() > 1e-5


def test_break_even_lines_are_the_cases_and_links_are_limits():
    prompts, links = [64, 512, 4096], [LINKS["100 Gb/s"], LINKS["400 Gb/s"]]
    names = ["llama-3-8b", "qwen2.5-0.5b"]
    cases = {name: split_cases([find_shape(name)], find_hardware("h100 sxm"), prompts, links) for name in names}
    axes = figures.draw_break_even(cases, links).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for name in names:
        assert list(lines[name].get_xdata()) == prompts
        assert list(lines[name].get_ydata()) == [case.break_even_bytes_per_second for case in cases[name]]
        assert (lines[name].get_color(), lines[name].get_linestyle()) == (TRANSFER, "-.")
        assert lines[name].get_fillstyle() == "none"
    for link in links:
        assert set(lines[link.name].get_ydata()) == {link.bytes_per_second}
    assert {*names, "100 Gb/s", "400 Gb/s"} <= set(words(axes))
    assert len({lines[name].get_marker() for name in names}) == len(names)


def test_labels_that_would_overlap_are_pushed_up_and_others_stay():
    assert figures._spread([100.0, 10.0, 11.0], factor=1.5) == [100.0, 10.0, 15.0]


def test_transfers_are_the_data_and_predictions_are_dashed_and_hollow():
    sizes, predicted, measured = [1e6, 7e6, 3e7], [0.01, 0.02, 0.05], [0.02, 0.03, 0.07]
    axes = figures.draw_transfers(sizes, predicted, measured, (11e6, 0.04)).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    line, plain, hand_off = (lines[name] for name in ("predicted", "plain arrays measured", "hand-off measured"))
    for drawn, seconds in ((line, predicted), (plain, measured)):
        assert (list(drawn.get_xdata()), list(drawn.get_ydata())) == ([1.0, 7.0, 30.0], seconds)
    assert (list(hand_off.get_xdata()), list(hand_off.get_ydata())) == ([11.0], [0.04])
    assert (line.get_linestyle(), line.get_fillstyle()) == ("--", "none")
    assert plain.get_fillstyle() == hand_off.get_fillstyle() == "full"
    assert line.get_color() == hand_off.get_color() == TRANSFER
    for formatter in (axes.yaxis.get_major_formatter(), axes.yaxis.get_minor_formatter()):
        assert [formatter(seconds, None) for seconds in (0.01, 0.02, 0.03, 0.05)] == ["10", "20", "", "50"]


def test_gaps_of_all_runs_stand_on_the_same_axes():
    one = figures.Gaps("one machine", [0.1, 0.2, 1.2], [0.1, 0.1, 1.0], [0.15])
    two = figures.Gaps("two machines", [0.1, 0.2, 0.3], [0.1, 0.1, 0.1], [0.15, 0.25])
    first, second = figures.draw_gaps([one, two]).axes
    assert first.get_xlim() == second.get_xlim() and first.get_ylim() == second.get_ylim()
    for axes, run in ((first, one), (second, two)):
        lines = {line.get_label(): line for line in axes.lines}
        assert list(lines["gaps"].get_xdata()) == run.ends and list(lines["gaps"].get_ydata()) == run.seconds
        assert list(lines["prompts"].get_xdata()) == run.prompts_came
        assert (lines["gaps"].get_color(), lines["prompts"].get_color()) == (DECODE, PREFILL)
        assert axes.get_title(loc="left") == run.name
