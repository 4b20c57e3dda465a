"""A reader gets everywhere: by keyboard alone, by search, in the theme that they choose."""

import pytest
from book_site import BOOK, DESKTOP, PHONE, WRITTEN_PAGES, wait_until_drawn

CHAPTER = "notebooks/01_write_attention.html"

# Where the focus is now: its name, and whether the reader sees that it is there.
LOOK_AT_FOCUS = """() => {
  const focus = document.activeElement, style = getComputedStyle(focus), box = focus.getBoundingClientRect();
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none';
  const name = (focus.ariaLabel || focus.innerText || focus.title || focus.outerHTML.slice(0, 200)).trim();
  const inside = box.width > 0 && box.right > 0 && box.left < innerWidth;
  return {name, tag: focus.tagName, seen: ring && inside && style.opacity > 0.5};
}"""


def walk_by_tab(page, steps):
    stops = []
    for _ in range(steps):
        page.keyboard.press("Tab")
        page.evaluate("() => document.getAnimations().forEach(fading => fading.finish())")
        stops.append(page.evaluate(LOOK_AT_FOCUS))
    return stops


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tab_leads_to_every_control_and_shows_where_it_is(open_page, theme):
    page = open_page(CHAPTER, theme).page
    stops = [stop for stop in walk_by_tab(page, 60) if stop["tag"] != "BODY"]
    assert [stop for stop in stops if not stop["seen"]] == []
    names = " | ".join(stop["name"] for stop in stops)
    for control in ("Skip to main content", "Search", "2. Keep the keys and values", "Color mode", "Copy"):
        assert control in names, names


# Every control of the page that cannot be seen while it has the focus. A radio button may leave that to its label.
FIND_UNSEEN_FOCUS = """() => {
  const look = (part, pseudo) => {
    const style = getComputedStyle(part, pseudo);
    return [style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0, style.boxShadow].join();
  };
  const unseen = [];
  for (const control of document.querySelectorAll('main :is(a[href], button, input, select, summary, [tabindex])')) {
    if (!control.checkVisibility({visibilityProperty: true}) || control.disabled) continue;
    const label = control.closest('label') ?? control.labels?.[0];
    const looks = () => [look(control), look(control, '::after'), label && look(label)].join();
    document.activeElement.blur();
    document.getAnimations().forEach(fading => fading.finish());
    const before = looks();
    control.focus();
    document.getAnimations().forEach(fading => fading.finish());
    if (document.activeElement === control && looks() === before) unseen.push(control.outerHTML.slice(0, 120));
  }
  return unseen;
}"""


@pytest.mark.parametrize("path", WRITTEN_PAGES)
def test_every_control_of_a_page_shows_that_it_has_the_focus(open_page, path):
    page = open_page(path).page
    page.keyboard.press("Tab")  # a browser shows the focus to those who use the keyboard
    assert page.evaluate(FIND_UNSEEN_FOCUS) == []


def test_the_first_tab_and_enter_skip_to_the_text(open_page):
    page = open_page(CHAPTER).page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**#main-content")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_the_menu_of_a_phone_opens_leads_on_and_closes_by_keyboard(open_page):
    page = open_page(CHAPTER, width=PHONE).page
    link = page.locator("nav.bd-links a", has_text="2. Keep the keys and values")
    assert not link.is_visible()
    page.locator("button.primary-toggle:visible").press("Enter")
    link.wait_for(state="visible")
    page.keyboard.press("Escape")
    link.wait_for(state="hidden")
    page.locator("button.primary-toggle:visible").press("Enter")
    link.press("Enter")
    page.wait_for_url("**/02_keep_keys_and_values.html")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_chosen_theme_stays_on_the_next_page(open_page, scheme):
    page = open_page(CHAPTER, theme="light", scheme=scheme).page
    button = page.locator("button.theme-switch-button:visible").first
    for _ in range(3):
        if page.evaluate("document.documentElement.dataset.mode") == "dark":
            break
        button.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("link", name="2. Keep the keys and values").first.click()
    wait_until_drawn(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("scheme", ["http", "file"])
@pytest.mark.parametrize(
    ("words", "leads_to"),
    [("依山尽", CHAPTER), ("TTFT", "notebooks/03_prefill_and_decode.html"), ("TTFT", "book/glossary.html")],
)
def test_search_finds(open_page, words, leads_to, scheme):
    visit = open_page(CHAPTER, scheme=scheme)
    page = visit.page
    page.keyboard.press("Control+k")
    page.keyboard.insert_text(words)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    page.locator("#search-results p.search-summary").wait_for()
    page.wait_for_function("() => /matching|found/.test(document.querySelector('p.search-summary').innerText)")
    found = page.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
    assert [address for address in found if leads_to in address], found
    assert all(visit.find_file(address.partition("?")[0].partition("#")[0]).is_file() for address in found)


def test_search_for_what_is_nowhere_finds_nothing(open_page):
    page = open_page("search.html?q=xyzzyx").page
    page.get_by_text("did not match any documents").wait_for()
    assert page.locator("#search-results li").count() == 0


def test_a_page_names_an_icon_that_is_there(open_page):
    visit = open_page(CHAPTER, width=DESKTOP)
    icon = visit.page.eval_on_selector("link[rel~=icon]", "link => link.href")
    assert visit.find_file(icon).read_text(encoding="utf-8").lstrip().startswith("<svg")
    assert visit.find_file(icon).is_relative_to(BOOK)
