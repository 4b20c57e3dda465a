"""The roofline explorer in the book: its JavaScript equals Python on a grid, its address says what it shows."""

import itertools
import json
from dataclasses import asdict, replace
from urllib.parse import quote

import numpy as np
import pytest
from book_site import BOOK, PHONE
from playwright.sync_api import expect

from tinyinfer.figures import style
from tinyinfer.figures.explorer import Choice, explored_rows, roofline_explorer, summarise
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.hardware import BYTES_PER_NUMBER, HARDWARE, Hardware, bytes_per_number
from tinyinfer.performance.memory import largest_batch
from tinyinfer.performance.prediction import critical_batch, predict_decode, predict_prefill
from tinyinfer.performance.report import plain, with_prefix
from tinyinfer.performance.shapes import SHAPES

PAGE = "notebooks/roofline_explorer.html"
FIGURE = "figure.tinyinfer-widget#widget-explorer"
ODD = dict(layers=3, model_dim=14, heads=6, kv_heads=2, head_dim=10, ffn_dim=17, vocab=23, max_context=99)
MODELS = [
    *SHAPES.values(),
    ModelConfig("windowed", sliding_window=101, **ODD),
    ModelConfig("biased", qkv_bias=True, output_bias=True, tied_head=True, **ODD),
    ModelConfig("normed", qk_norm=True, sliding_window=1, **ODD),
]
DEVICES = [
    *HARDWARE.values(),
    Hardware("floored", {"fp32": 7e11, "bf16": 3e12}, 3e10, 11e9, "a test", launch_floor_seconds=5e-6),
]
LOADS = [(1, 1, 1), (7, 97, 131), (267, 4096, 128), (1024, 131_072, 131_072)]  # batch, prompt, context
STATES = [
    Choice(),
    Choice("smollm2-135m", "V100 PCIe 32GB", "fp16", 1, 1, 1),
    Choice("qwen2.5-0.5b", "Apple M2 Ultra", "int4", 1024, 131_072, 128),
    Choice("llama-3-70b", "H200 SXM", "bf16", 267, 256, 8192),
    Choice("llama-3.1-405b", "TPU v6e", "int8", 384, 3, 5),
    Choice("mistral-7b", "RTX 4090", "fp8", 3, 17, 131_072),
    Choice("qwen3-0.6b", "EPYC 9654", "fp32", 48, 4096, 1000),
    Choice("llama-2-13b", "B200 SXM", "fp8", 1024, 131_072, 1),
    Choice("qwen2.5-7b", "Threadripper PRO 5995WX", "bf16", 12, 96, 96),
    Choice("llama-2-70b", "H100 SXM", "tf32", 200, 1, 1),
    Choice("llama-3.1-8b", "Xeon 8480+", "fp32", 2, 300, 300),
]


def fragment_of(**parts):
    return "#" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parts.items())


def said(choice):
    return summarise(SHAPES[choice.model], HARDWARE[choice.gpu], choice)


def check_shown(figure, choice):
    """The sentence, the table and the controls are those of this state."""
    expect(figure.locator("p[aria-live]")).to_have_text(said(choice))
    rows = [tuple(line.locator("th, td").all_inner_texts()) for line in figure.locator("tbody tr").all()]
    assert rows == explored_rows(SHAPES[choice.model], HARDWARE[choice.gpu], choice)
    for name, label in (("model", "Model"), ("gpu", "GPU"), ("dtype", "Dtype")):
        assert figure.get_by_label(label).input_value() == getattr(choice, name)
    shown = [output.inner_text() for output in figure.locator("output").all()]
    assert shown == [f"{count:,}" for count in (choice.batch, choice.prompt, choice.context)]


@pytest.fixture
def explorer(open_page):
    return open_page(PAGE).page.locator(FIGURE)


def test_the_page_carries_the_shapes_and_devices_of_the_package(explorer):
    data = json.loads(explorer.locator('script[type="application/json"]').text_content())
    assert data == json.loads(json.dumps(roofline_explorer().data))


PREDICT = """([models, devices, cases]) => cases.map(([model, device, dtype, batch, prompt, context]) => {
  const numbers = ({ flops, bytes, launches, intensity, compute, memory, launch, seconds }) =>
    [flops, bytes, launches, intensity, compute, memory, launch, seconds];
  const [shape, machine] = [models[model], devices[device]];
  const prefill = tinyinfer.predictPrefill(shape, machine, dtype, prompt, batch);
  const decode = tinyinfer.predictDecode(shape, machine, dtype, context, batch);
  return {
    numbers: [...numbers(prefill), prefill.tokensPerSecond, ...numbers(decode), decode.tokensPerSecond],
    needed: tinyinfer.memoryNeeded(shape, tinyinfer.bytesOf[dtype], batch, context).together,
    words: [prefill.bound, decode.bound],
    rows: tinyinfer.explore(shape, machine, { dtype, batch, prompt, context }).rows,
    batches: ["largestBatch", "criticalBatch"].map(name => tinyinfer[name](shape, machine, dtype, context)),
  };
})"""


def in_python(model, device, dtype, batch, prompt, context):
    phases = [
        predict_prefill(model, device, prompt, batch, dtype),
        predict_decode(model, device, context, batch, dtype),
    ]
    numbers, words, number = [], [], bytes_per_number(dtype)
    for phase in phases:
        work, limits = phase.work, phase.limits
        numbers += [work.flops, work.bytes_moved, work.launches, work.intensity]
        numbers += [limits.compute_seconds, limits.memory_seconds, limits.launch_seconds, limits.seconds]
        numbers.append(phase.tokens_per_second)
        words.append(limits.bound)
    fitting = largest_batch(model, device, context, number, number)
    batches = [fitting, critical_batch(model, device, context, dtype)]
    choice = Choice(model.name, device.name, dtype, batch, prompt, context)
    rows = [list(row) for row in explored_rows(model, device, choice)]
    return {"numbers": numbers, "needed": phases[1].memory_bytes, "words": words, "batches": batches, "rows": rows}


def test_every_prediction_in_javascript_is_that_of_python(explorer):
    cases = [
        (model, device, dtype, *load)
        for model, device in itertools.product(range(len(MODELS)), range(len(DEVICES)))
        for dtype in DEVICES[device].flops_per_second or BYTES_PER_NUMBER
        for load in LOADS[(model + device) % 2 :: 2]
    ]
    known = [[asdict(model) for model in MODELS], [asdict(device) for device in DEVICES]]
    shown = explorer.page.evaluate(PREDICT, [*known, cases])
    right = [in_python(MODELS[model], DEVICES[device], *others) for model, device, *others in cases]
    for case, one, other in zip(cases, shown, right, strict=True):
        assert one["words"] == other["words"] and one["batches"] == other["batches"], case
        assert one["rows"] == other["rows"], case
    numbers = [np.array([[*each["numbers"], each["needed"]] for each in side], float) for side in (shown, right)]
    np.testing.assert_allclose(*numbers, rtol=1e-12)
    bounds = {word for each in right for word in each["words"]}
    rooms = {words for each in right for words in ("does not fit", "fits", "unknown") if words in each["rows"][5][1]}
    assert bounds == {"compute", "memory", "launch"} and len(rooms) == 3  # the grid meets every case


def test_numbers_are_written_as_python_writes_them(explorer):
    values = [0, 1, 999.4, 999.5, 494.5e12, 242.5e12, 112.5e9, 1.555e12, 1.545e12, 9.995e-4, 1e-3, 1e-9, 3e-11]
    values += (10 ** np.random.default_rng(11).uniform(-9, 20, 500)).tolist()
    script = "([values, unit]) => values.map(value => tinyinfer.withPrefix(value, unit))"
    for unit in ("B", "s"):
        assert explorer.page.evaluate(script, [values, unit]) == [with_prefix(value, unit) for value in values]
    values = [value for value in values if value < 2**53]  # beyond, JavaScript does not know every whole number
    values += [7812.5, 7813.5, 0.0125, 0.05, 0.25, 0.125, 12.25, 99.95, 100.5]  # halves
    assert explorer.page.evaluate("values => values.map(tinyinfer.plain)", values) == list(map(plain, values))


def test_an_address_says_what_is_shown_when_it_changes(explorer):
    for choice in STATES:
        explorer.page.evaluate("fragment => { location.hash = fragment; }", fragment_of(**asdict(choice)))
        check_shown(explorer, choice)
    assert explorer.locator(".refused").inner_text() == ""


@pytest.mark.parametrize(("scheme", "choice"), [("http", STATES[1]), ("file", STATES[2]), ("file", STATES[5])])
def test_an_address_says_what_is_shown_on_load(open_page, scheme, choice):
    figure = open_page(PAGE + fragment_of(**asdict(choice)), scheme=scheme).page.locator(FIGURE)
    check_shown(figure, choice)
    assert figure.locator(".refused").inner_text() == ""


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_controls_write_the_address_and_loading_it_again_shows_the_same(open_page, scheme):
    page = open_page(PAGE, scheme=scheme).page
    figure = page.locator(FIGURE)
    assert "#" not in page.url
    figure.get_by_label("Model").select_option("qwen2.5-32b")
    figure.get_by_label("GPU").select_option("Xeon 8480+")
    figure.get_by_label("Batch").press("End")
    figure.get_by_label("Prompt").press("Home")
    figure.get_by_label("Context").press("ArrowRight")
    choice = Choice("qwen2.5-32b", "Xeon 8480+", "fp32", 1024, 1, 6144)
    check_shown(figure, choice)
    page.wait_for_url("**" + fragment_of(**asdict(choice)))
    page.reload()
    check_shown(figure, choice)


def test_every_step_of_every_slider_is_reached_by_the_arrow_keys(explorer):
    sizes = {"Batch": 1024, "Prompt": 131_072, "Context": 131_072}
    for place, (name, largest) in enumerate(sizes.items()):
        slider, output = explorer.get_by_label(name), explorer.locator("output").nth(place)
        slider.press("Home")
        seen = [1]
        while seen[-1] < largest:
            slider.press("ArrowRight")
            seen.append(int(output.inner_text().replace(",", "")))
        powers = [2**power for power in range(largest.bit_length())]
        assert seen == sorted([*powers, *(3 * power for power in powers[:-2])])
        assert slider.get_attribute("aria-valuetext").startswith(f"{largest:,} ")


def test_wrong_parts_of_an_address_are_named_and_the_others_hold(open_page):
    wrong = "#gpu=H300&batch=0&prompt=1e3&context=131073&dtype=bf17&color=%zz&model=LLAMA-2-7B"
    figure = open_page(PAGE + wrong).page.locator(FIGURE)
    check_shown(figure, Choice("llama-2-7b"))
    note = figure.locator(".refused")
    assert note.is_visible()
    assert note.inner_text() == (
        "Ignored in the address: gpu “H300” is not known; batch “0” is no whole number from 1 to 1,024; "
        "prompt “1e3” is no whole number from 1 to 131,072; context “131073” is no whole number from 1 to 131,072; "
        "dtype “bf17” is not known; “color” is none of model, gpu, dtype, batch, prompt, context."
    )
    figure.get_by_label("Batch").press("ArrowRight")
    assert note.inner_text() == ""


def test_a_link_to_a_heading_changes_nothing(explorer):
    explorer.get_by_label("Batch").press("End")
    explorer.page.evaluate("() => { location.hash = 'three-things-to-try'; }")
    explorer.page.wait_for_timeout(300)
    check_shown(explorer, replace(Choice(), batch=1024))
    explorer.page.evaluate("() => { location.hash = ''; }")  # as the theme's link to the page itself: to its top
    explorer.page.wait_for_timeout(300)
    check_shown(explorer, replace(Choice(), batch=1024))


def test_the_way_back_from_a_heading_leads_where_the_reader_was(open_page):
    page = open_page("notebooks/04_port_to_cuda_and_draw_the_roofline.html").page
    link = page.locator("main a[href='#fig-roofline-both']").first
    link.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    before = page.evaluate("scrollY")
    link.click()
    page.wait_for_function("before => location.hash && Math.abs(scrollY - before) > 50", arg=before)
    page.wait_for_timeout(1000)  # the theme scrolls smoothly
    page.go_back()
    page.wait_for_function("before => !location.hash && Math.abs(scrollY - before) < 50", arg=before, timeout=5000)


def notes_of(figure):
    return figure.locator(".notes li").all_inner_texts()


def test_a_dtype_that_a_device_lacks_is_replaced_by_its_nearest_with_a_word_and_comes_back(explorer):
    explorer.get_by_label("GPU").select_option("V100 SXM2 32GB")
    check_shown(explorer, replace(Choice(), gpu="V100 SXM2 32GB", dtype="fp16"))
    words = "No bf16 peak is known for V100 SXM2 32GB, so this is fp16. Known: fp32, fp16."
    assert words in notes_of(explorer)
    enabled = explorer.get_by_label("Dtype").locator("option:enabled").all_inner_texts()
    assert enabled == ["fp32", "fp16"]
    explorer.get_by_label("GPU").select_option("A100 80GB SXM")
    check_shown(explorer, replace(Choice(), gpu="A100 80GB SXM"))


def test_what_is_not_known_is_said(explorer):
    assert notes_of(explorer) == ["Starting a kernel counts as 0 s: the launch floor of H200 SXM is not measured."]
    explorer.get_by_label("GPU").select_option("Apple M3 Pro")
    explorer.get_by_label("Prompt").press("End")
    explorer.get_by_label("Batch").press("End")
    choice = Choice(gpu="Apple M3 Pro", prompt=131_072, batch=1024)
    check_shown(explorer, choice)
    prefill = predict_prefill(SHAPES[choice.model], HARDWARE[choice.gpu], choice.prompt, choice.batch)
    rate = with_prefix(prefill.work.flops / prefill.seconds, "FLOP/s")
    assert notes_of(explorer) == [
        "No FLOP/s is published for Apple M3 Pro, so memory alone bounds the times.",
        "llama-3-8b was made for at most 8,192 tokens.",
        f"The prefill mark stands at the edge of the picture; it belongs at {prefill.work.intensity:,.0f} FLOP per "
        f"byte and {rate}.",
        "Starting a kernel counts as 0 s: the launch floor of Apple M3 Pro is not measured.",
    ]


def test_each_suggestion_shows_what_it_promises(open_page):
    page = open_page(PAGE, width=PHONE).page
    figure = page.locator(FIGURE)
    one = Choice(batch=1)
    promised = [
        replace(one, prompt=128, context=128),
        replace(one, batch=1024),
        one,
        replace(one, model="llama-3-70b"),
        replace(one, model="llama-3-70b", dtype="fp8"),
    ]
    buttons = page.locator("main button[data-explore]")
    assert buttons.count() == len(promised)
    for button, choice in zip(buttons.all(), promised, strict=True):
        button.press("Enter")
        check_shown(figure, choice)
        expect(figure.get_by_label("Model")).to_be_in_viewport()


# Where the picture writes and draws, in pixels of the page: texts, then the marks.
BOXES = """figure => ["text", ".mark"].map(kind => [...figure.querySelectorAll(`.roofline ${kind}`)].map(part => {
  const { left, top, right, bottom } = part.getBoundingClientRect();
  return [part.textContent || part.getAttribute("class"), left, top + 2, right, bottom - 2];
}))"""


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_no_name_in_the_picture_covers_another_or_leaves_it(open_page, width):
    page = open_page(PAGE, width=width).page
    figure = page.locator(FIGURE)
    for choice in [*STATES, *(replace(Choice(), gpu=gpu, dtype="fp32") for gpu in HARDWARE if "TPU" not in gpu)]:
        page.evaluate("fragment => { location.hash = fragment; }", fragment_of(**asdict(choice)))
        expect(figure.locator("p[aria-live]")).to_have_text(said(choice))
        texts, marks = figure.evaluate(BOXES)
        assert len(marks) == 2 and {"prefill", "decode"} <= {name for name, *_ in texts}
        pairs = [*itertools.combinations(texts, 2), *itertools.product(texts, marks)]
        for (one, left, top, right, bottom), (other, *box) in pairs:
            apart = right <= box[0] or box[2] <= left or bottom <= box[1] or box[3] <= top
            assert apart, f"{choice}: {one} and {other}"
        picture = figure.locator(".roofline svg").bounding_box()
        assert min(left for _, left, *_ in texts) >= picture["x"]
        assert max(right for *_, right, _ in texts) <= picture["x"] + picture["width"] <= width


MARK_PLACES = """figure => {
  const [triangle, circle] = figure.querySelectorAll(".mark");
  const box = triangle.getBBox();
  const roof = figure.querySelector(".roof").getAttribute("points").split(" ").map(one => one.split(",").map(Number));
  return { prefill: [box.x + 8, box.y + 8], decode: [+circle.getAttribute("cx"), +circle.getAttribute("cy")], roof };
}"""


@pytest.mark.parametrize("choice", [Choice(), Choice(batch=512, prompt=16, context=128)])
def test_both_marks_stand_on_the_roof_at_their_intensity(open_page, choice):
    page = open_page(PAGE + fragment_of(**asdict(choice))).page
    places = page.locator(FIGURE).evaluate(MARK_PLACES)
    (start, low), (bend, high), (end, flat) = places["roof"]
    assert high == pytest.approx(flat)
    shape, device = SHAPES[choice.model], HARDWARE[choice.gpu]
    decades = np.log10(np.array(style.INTENSITY_LIMITS))
    phases = {
        "prefill": predict_prefill(shape, device, choice.prompt, choice.batch),
        "decode": predict_decode(shape, device, choice.context, choice.batch),
    }
    assert bend == pytest.approx(np.interp(np.log10(device.ridge("bf16")), decades, [start, end]))
    for name, prediction in phases.items():
        across = np.interp(np.log10(prediction.work.intensity), decades, [start, end])
        assert places[name] == pytest.approx([across, np.interp(across, [start, bend, end], [low, high, flat])])


CONTRAST = """figure => {
  const light = text => {
    const [red, green, blue] = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(one => one / 255)
      .map(one => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  return [".mark.prefill", ".mark.decode", ".roof", ".name.prefill", ".name.decode", "text"].map(kind => {
    const { stroke, fill } = getComputedStyle(figure.querySelector(`.roofline ${kind}`));
    const ink = light(stroke === "none" ? fill : stroke);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_and_texts_of_the_picture_stand_out_in_both_themes(open_page, theme):
    figure = open_page(PAGE, theme, PHONE).page.locator(FIGURE)
    *shapes, prefill, decode, text = figure.evaluate(CONTRAST)
    assert min(shapes) >= 3 and min(prefill, decode, text) >= 4.5
    if theme == "light":
        script = "(figure, kind) => getComputedStyle(figure.querySelector(`.mark.${kind}`)).stroke"
        for kind, colour in (("prefill", style.PREFILL), ("decode", style.DECODE)):
            red, green, blue = bytes.fromhex(colour[1:])
            assert figure.evaluate(script, kind) == f"rgb({red}, {green}, {blue})"


def test_the_picture_follows_the_width_of_the_window(open_page):
    page = open_page(PAGE, width=1280).page
    svg = page.locator(f"{FIGURE} .roofline svg")
    before = svg.bounding_box()["width"]
    page.set_viewport_size({"width": PHONE, "height": 844})
    expect(svg).not_to_have_attribute("viewBox", f"0 0 {before:.0f} 0")
    page.wait_for_function("() => document.querySelector('.roofline svg').viewBox.baseVal.width < 390")
    size = page.locator(f"{FIGURE} .roofline .tick").first.evaluate("tick => tick.getBoundingClientRect().height")
    assert 12 < size < 20  # type does not shrink with the picture


@pytest.mark.parametrize(
    "look", [("light", 1280, "http"), ("dark", PHONE, "file")], ids=["light desktop", "dark phone"]
)
def test_controls_have_names_show_their_focus_and_stay_inside_the_page(open_page, look):
    page = open_page(PAGE, *look).page
    figure = page.locator(FIGURE)
    controls = figure.locator("input, select, button").all()
    assert len(controls) == 7
    controls[0].focus()
    for control in controls:
        if control.evaluate("control => control.tagName") != "BUTTON":
            assert control.evaluate("control => control.labels.length") == 1
        assert control.evaluate("control => control === document.activeElement")
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        assert control.evaluate("control => getComputedStyle(control).outlineStyle") == "solid"
        page.keyboard.press("Tab")
    for part in ("figure => figure", "figure => document.documentElement"):
        assert figure.evaluate(f"figure => (({part})(figure)).scrollWidth <= (({part})(figure)).clientWidth")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_the_link_is_copied_from_the_web_and_from_disk(open_page, scheme):
    page = open_page(PAGE, scheme=scheme).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.url and copied.endswith(fragment_of(**asdict(Choice())))


def test_without_scripts_the_picture_and_the_table_of_the_start_are_shown(browser, book_address):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(book_address + PAGE)
        picture = page.locator(f"{FIGURE} .still img")
        assert picture.is_visible() and said(Choice()) in picture.get_attribute("alt")
        assert picture.bounding_box()["width"] > 400
        rows = page.locator(f"{FIGURE} .still tbody tr").all()
        start = explored_rows(SHAPES["llama-3-8b"], HARDWARE["H200 SXM"], Choice())
        assert [tuple(row.locator("th, td").all_inner_texts()) for row in rows] == start
    finally:
        context.close()


def test_the_way_back_to_an_address_without_a_state_shows_the_start(open_page):
    page = open_page(PAGE).page
    figure = page.locator(FIGURE)
    check_shown(figure, Choice())
    page.locator("[data-explore]").first.click()
    page.wait_for_function("location.hash.includes('=')")
    assert figure.get_by_role("slider", name="Batch").get_attribute("aria-valuetext") == "1 sequence"
    page.go_back()
    page.wait_for_function("!location.hash")
    check_shown(figure, Choice())


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString"])
def test_an_address_with_a_name_of_javascripts_own_is_refused_and_nothing_breaks(open_page, name):
    page = open_page(f"{PAGE}#{name}=1&batch=3").page
    figure = page.locator(FIGURE)
    assert f"“{name}” is none of" in figure.locator(".refused").inner_text()
    check_shown(figure, replace(Choice(), batch=3))
    page.locator("[data-explore]").first.click()
    page.wait_for_function("location.hash.includes('prompt=128')")


def test_the_explorer_stands_alone_in_the_table_of_contents(explorer):
    page = explorer.page
    part = page.locator("nav.bd-links .caption", has_text="Explore").locator("xpath=following-sibling::ul[1]")
    assert part.locator("a").all_inner_texts() == ["Roofline explorer"]
    assert (BOOK / PAGE).stat().st_size < 1_500_000


ANSWER_EVERY_STEP = """figure => [...figure.querySelectorAll("input")].flatMap(control => {
  const milliseconds = [];
  for (let step = 0; step <= Number(control.max); step += 1) {
    const before = performance.now();
    control.value = step;
    control.dispatchEvent(new Event("input"));
    figure.getBoundingClientRect();
    milliseconds.push(performance.now() - before);
  }
  return milliseconds;
}).sort((one, other) => one - other)"""


def test_a_slider_answers(explorer):
    milliseconds = explorer.evaluate(ANSWER_EVERY_STEP)  # for people to read: times decide no test
    print(f"median {np.median(milliseconds):.2f} ms, longest {milliseconds[-1]:.2f} ms; a frame lasts 16.7 ms")
    check_shown(explorer, Choice(batch=1024, prompt=131_072, context=131_072))
