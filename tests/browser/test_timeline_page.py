"""The request timeline in a browser: every moment shows Python's words and numbers, by buttons, keys and playing."""

import numpy as np
import pytest
from book_site import DESKTOP, PHONE
from playwright.sync_api import expect

from tinyinfer.figures.request import Gaps
from tinyinfer.figures.timeline import request_parts, request_timeline, summarise_gaps
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

PROMPT, ANSWER = "白日依山尽", ["，", "黄", "河", "入", "<eos>"]
RUNS = [
    Gaps("colocated", [0.1, 0.2, 0.5, 0.61], [0.011, 0.013, 0.307, 0.019], [0.17]),
    Gaps("split", [0.1, 0.2, 0.3], [0.011, 0.013, 0.017], [0.17, 0.23]),
]


def rows_of(count):
    return {"layer_0": {"head_0": {"K": np.zeros((count, 3)), "V": np.zeros((count, 3))}}}


def made_trace():
    asked = tuple(Token(place, text) for place, text in enumerate(PROMPT))
    chosen = tuple(Token(place, text) for place, text in enumerate(ANSWER, start=5))
    steps = tuple(DecodeStage("r", chosen[:n], chosen[n], rows_of(1)) for n in range(1, len(chosen)))
    timing = RequestTiming(0.002, 0.011, 0.003, 0.017, 0.005, (0.013, 0.038, 0.045, 0.051, 0.0613))
    return Trace(
        RequestStage("r", PROMPT, asked),
        PrefillStage("r", rows_of(5), np.zeros(7), chosen[0]),
        TransferStage("r", 1200, {}, (), chosen[0]),
        steps,
        ResultStage("r", "".join(ANSWER[:-1]), timing),
    )


TRACE = made_trace()
PARTS = request_parts(TRACE)


@pytest.fixture
def open_timeline(browser):
    """The widget alone on a page of its own, in either theme, at any width."""
    contexts = []

    def open_one(runs=RUNS, theme="light", width=DESKTOP, motion="no-preference"):
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion=motion, has_touch=True)
        contexts.append(context)
        page = context.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        ground = "#fff; color: #222" if theme == "light" else "#121212; color: #ddd"
        page.set_content(
            f'<!doctype html><html lang="en" data-theme="{theme}"><title>one</title><meta charset="utf-8">'
            f'<body style="background: {ground}">{request_timeline(TRACE, runs)._repr_html_()}'
        )
        assert not errors
        return page.locator("figure.tinyinfer-widget#widget-timeline")

    yield open_one
    for context in contexts:
        context.close()


def check_moment(figure, seconds):
    """Sentence, table and strip are those of this moment."""
    done = [part for part in PARTS if part.end <= seconds]
    if len(done) == len(PARTS):
        words = f"Finished: {''.join(ANSWER)} took {seconds * 1e3:.2f} ms."
    else:
        words = f"{PARTS[len(done)].name}: {PARTS[len(done)].says}."
    assert figure.locator("p[aria-live]").first.inner_text() == words
    assert figure.locator("output").inner_text() == f"{seconds * 1e3:.2f} ms"
    answer, rows, there, size = ((), 0, 0, 0) if not done else (
        done[-1].answer, done[-1].rows, done[-1].rows_there, done[-1].crossed_bytes
    )  # fmt: skip
    shown = [line.locator("td").inner_text() for line in figure.locator("tbody tr").all()]
    assert shown == ["".join(answer) or "–", str(rows), str(there), f"{size:,}"]
    kinds = [cell.get_attribute("class") for cell in figure.locator(".strip span").all()]
    known = len(PROMPT) + len(answer)
    unread = ["known"] * (known - rows)
    assert kinds == ["written"] * rows + unread + ["unseen"] * (len(PROMPT) + len(ANSWER) - known)


def test_buttons_lead_through_every_part_and_back(open_timeline):
    figure = open_timeline()
    following, back = figure.get_by_role("button", name="Next part"), figure.get_by_role("button", name="Back")
    moments = [0, *(part.end for part in PARTS)]
    assert back.is_disabled()
    for moment in moments[:-1]:
        check_moment(figure, moment)
        following.tap()
    check_moment(figure, moments[-1])
    assert following.is_disabled()
    for moment in moments[-2::-1]:
        back.press("Enter")
        check_moment(figure, moment)


def test_the_slider_moves_time_by_keyboard(open_timeline):
    figure = open_timeline()
    slider, total = figure.get_by_role("slider", name="Time"), PARTS[-1].end
    slider.press("End")
    check_moment(figure, total)
    slider.press("Home")
    for step in range(1, 201):
        slider.press("ArrowRight")
        if step % 23 == 0:
            check_moment(figure, total * (step / 200))
            name = next(part.name for part in PARTS if part.end > total * (step / 200))
            assert slider.get_attribute("aria-valuetext") == f"{total * (step / 200) * 1e3:.2f} ms, {name}"
    check_moment(figure, total)


PLACES = """figure => {
  const [track] = figure.querySelectorAll(".track");
  const { left, width } = track.getBoundingClientRect();
  return [...figure.querySelectorAll(".track span")].map(bar => {
    const box = bar.getBoundingClientRect();
    return [bar.closest(".lane").firstChild.textContent, (box.left - left) / width, (box.right - left) / width];
  });
}"""


def test_bars_stand_in_their_lanes_at_their_times(open_timeline):
    bars = open_timeline().evaluate(PLACES)
    total = PARTS[-1].end
    for lane in dict.fromkeys(lane for lane, *_ in bars):
        own = [part for part in PARTS if part.lane == lane]
        places = [bar[1:] for bar in bars if bar[0] == lane]
        np.testing.assert_allclose(places, [(part.start / total, part.end / total) for part in own], atol=0.002)
    assert len(bars) == len(PARTS)


def test_play_runs_to_the_end_and_can_be_paused(open_timeline):
    figure = open_timeline()
    page = figure.page
    page.clock.install()
    figure.get_by_role("button", name="Play").click()
    page.clock.run_for(4000)
    figure.get_by_role("button", name="Pause").click()
    moment = figure.locator("output").inner_text()
    assert 0 < float(moment.split()[0]) < PARTS[-1].end * 1e3
    page.clock.run_for(4000)
    assert figure.locator("output").inner_text() == moment
    figure.get_by_role("button", name="Play").press("Enter")
    page.clock.run_for(12_000)
    expect(figure.get_by_role("button", name="Play")).to_be_visible()
    check_moment(figure, PARTS[-1].end)


def test_readers_who_ask_for_less_motion_see_part_after_part(open_timeline):
    figure = open_timeline(motion="reduce")
    figure.page.clock.install()
    figure.get_by_role("button", name="Play").click()
    for part in PARTS:
        figure.page.clock.run_for(1500)
        check_moment(figure, part.end)
    expect(figure.get_by_role("button", name="Play")).to_be_visible()


DOTS = """picture => picture.querySelector("path").getAttribute("d").split("M").slice(1)
  .map(dot => dot.replace("h0", "").split(" ").map(Number))"""


def test_runs_stand_one_above_another_on_the_same_axes(open_timeline):
    figure = open_timeline()
    pictures = figure.locator(".gaps").all()
    for run, picture in zip(RUNS, pictures, strict=True):
        assert figure.get_by_text(summarise_gaps(run), exact=True).is_visible()
        assert picture.get_attribute("aria-label").endswith(summarise_gaps(run))
        across, down = np.array(picture.evaluate(DOTS)).T
        np.testing.assert_allclose(across / 1e3 * 0.61, run.ends, atol=1e-4)
        np.testing.assert_allclose((1 - down / 1e3) * 0.307, run.seconds, atol=1e-4)
        assert picture.locator("span").count() == len(run.prompts_came)
    widths = [picture.bounding_box()["width"] for picture in pictures]
    assert widths[0] == widths[1]


def test_without_runs_the_timeline_stands_alone(open_timeline):
    figure = open_timeline(runs=())
    assert figure.locator(".gaps").count() == 0
    check_moment(figure, 0)


@pytest.mark.parametrize(("theme", "width"), [("light", DESKTOP), ("dark", PHONE)], ids=["light desktop", "dark phone"])
def test_controls_have_names_and_nothing_is_wider_than_the_page(open_timeline, theme, width):
    figure = open_timeline(theme=theme, width=width)
    for control in figure.locator("input").all():
        assert control.evaluate("control => control.labels.length") == 1
    for box in ("figure => figure", "figure => document.documentElement"):
        assert figure.evaluate(f"figure => (({box})(figure)).scrollWidth <= (({box})(figure)).clientWidth")
    ink, ground = figure.evaluate(
        "figure => [figure.querySelector('.gaps path'), document.body].map((part, place) =>"
        " getComputedStyle(part)[place ? 'backgroundColor' : 'stroke'])"
    )
    assert ink != ground
