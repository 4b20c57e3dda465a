"""What can be wrong with a page that is open in a browser. Each finder returns one line per fault; none means good."""

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag

from axe_playwright_python.sync_playwright import Axe
from book_site import DESKTOP, PHONE, Visit

OWN_SCHEMES = ("data:", "blob:")


def find_requests_elsewhere(visit: Visit) -> list[str]:
    return [address for address in visit.requests if not address.startswith((visit.root, *OWN_SCHEMES))]


def find_console_errors(visit: Visit) -> list[str]:
    return list(visit.errors)


@cache
def read_anchors(file: Path) -> set[str]:
    return set(re.findall(r'\s(?:id|name)="([^"]+)"', file.read_text(encoding="utf-8")))


def find_broken_links(visit: Visit) -> list[str]:
    """Links to files that are not there or anchors that the file lacks. Addresses of other hosts are not followed."""
    addresses = visit.page.evaluate(
        "() => [...document.querySelectorAll('a[href], link[href], script[src]')].map(a => a.href || a.src)"
    )
    here = visit.page.url.partition("#")[0]
    faults = []
    for address in dict.fromkeys(addresses):
        target, anchor = urldefrag(address)
        file = visit.find_file(target)
        if file is None:
            continue
        if target == here:
            found = visit.page.evaluate("name => !name || !!document.getElementById(name)", unquote(anchor))
        else:
            found = file.is_file() and (not anchor or unquote(anchor) in read_anchors(file))
        if not found:
            faults.append(f"leads nowhere: {address[len(visit.root) :]}")
    return faults


def find_bad_pictures(visit: Visit) -> list[str]:
    """Pictures that did not load, show nothing, or say nothing to those who do not see them. Folded ones are opened."""
    return visit.page.evaluate(
        """async () => {
          for (const folded of document.querySelectorAll('details')) folded.open = true;
          for (const folded of document.querySelectorAll('.toggle-hidden')) folded.classList.remove('toggle-hidden');
          const faults = [];
          for (const image of document.querySelectorAll('img')) {
            const name = image.getAttribute('src').slice(0, 80);
            image.loading = 'eager';
            await image.decode().catch(() => {});
            const alt = image.getAttribute('alt');
            if (alt === null || !alt.trim()) faults.push(`no alt text: ${name}`);
            else if (/\\.(png|svg|jpe?g)$/.test(alt)) faults.push(`a file name as alt text: ${name}`);
            if (!image.complete || !image.naturalWidth) faults.push(`not loaded: ${name}`);
            const meant = !image.closest('.only-light, .only-dark, .pst-sidebar-hidden, dialog:not([open])');
            if (meant && image.closest('main') && !(image.clientWidth > 8 && image.clientHeight > 8))
              faults.push(`not to be seen: ${name}`);
          }
          for (const drawing of document.querySelectorAll('main object, main figure svg, main svg[role="img"]')) {
            const box = drawing.getBoundingClientRect();
            if (drawing.closest('mjx-container, .svg-inline--fa, [aria-hidden="true"]')) continue;
            if (!(box.width > 20 && box.height > 20)) faults.push(`not to be seen: ${drawing.outerHTML.slice(0, 80)}`);
            const title = drawing.querySelector('title');
            if (!(drawing.ariaLabel || drawing.getAttribute('aria-labelledby') || title || drawing.textContent.trim()))
              faults.push(`no text for: ${drawing.outerHTML.slice(0, 80)}`);
          }
          return faults;
        }"""
    )


def find_undrawn_mathematics(visit: Visit) -> list[str]:
    return visit.page.evaluate(
        """() => {
          const faults = [];
          for (const formula of document.querySelectorAll('.math')) {
            const drawing = formula.querySelector('mjx-container svg');
            const what = formula.textContent.trim().slice(0, 60);
            if (!drawing) faults.push(`not drawn: ${what}`);
            else if (!drawing.clientWidth && drawing.checkVisibility()) faults.push(`drawn empty: ${what}`);
          }
          for (const error of document.querySelectorAll('[data-mml-node="merror"], mjx-merror'))
            faults.push(`MathJax says: ${error.getAttribute('data-mjx-error') || error.textContent}`);
          return faults;
        }"""
    )


def find_sideways_scroll(visit: Visit) -> list[str]:
    return visit.page.evaluate(
        """() => {
          const wide = document.documentElement.scrollWidth, room = document.documentElement.clientWidth;
          if (wide <= room) return [];
          const held = part => part.parentElement?.closest('body *') &&
            (getComputedStyle(part.parentElement).overflowX !== 'visible' || held(part.parentElement));
          const over = [...document.querySelectorAll('body *')]
            .filter(part => part.scrollWidth + part.getBoundingClientRect().left > room && !held(part))
            .map(part => part.tagName.toLowerCase() + (part.id ? '#' + part.id : ''));
          return [`${wide} px of content in ${room} px: ${over.slice(0, 4)}`];
        }"""
    )


def find_unordered_headings(visit: Visit) -> list[str]:
    """A page has one h1, and no heading is more than one level below the one before it."""
    headings = visit.page.evaluate(
        """() => [...document.querySelectorAll('main :is(h1, h2, h3, h4, h5, h6)')]
          .filter(heading => heading.checkVisibility()).map(heading => [+heading.tagName[1], heading.innerText])"""
    )
    levels = [level for level, _ in headings]
    faults = [] if levels.count(1) == 1 else [f"{levels.count(1)} headings of level 1"]
    for before, (level, text) in zip([0, *levels], headings, strict=False):
        if level > before + 1:
            faults.append(f"h{before} is followed by h{level} {text!r}")
    return faults


def find_barriers(visit: Visit) -> list[str]:
    """What axe-core calls a serious or critical barrier.

    To be quick, words of code, parts of signatures and entries of the page's contents stand there once of each kind.
    """
    visit.page.evaluate(
        """() => {
          const seen = new Set(), alike = [];
          for (const word of document.querySelectorAll('pre span, dt.sig :is(span, em, a)')) {
            const kind = word.className + getComputedStyle(word.closest('pre, dt')).backgroundColor;
            if (seen.has(kind) && !word.id) alike.push(word);
            seen.add(kind);
          }
          for (const word of alike) word.replaceWith(...word.childNodes);
          const kept = new Map();
          const entries = [...document.querySelectorAll('li.toc-entry')];
          for (const entry of entries) if (!kept.has(entry.className)) kept.set(entry.className, entry);
          for (const entry of entries) if (![...kept.values()].some(one => entry.contains(one))) entry.remove();
        }"""
    )
    unseen = {"exclude": [["mjx-container"]]}  # formulas are drawn in the colour of the text
    violations = Axe().run(visit.page, unseen, {"resultTypes": ["violations"], "preload": False}).response["violations"]
    return [
        f"{violation['id']} ({violation['impact']}): {json.dumps(node['target'])} {node['html'][:120]}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def find_faults(visit: Visit) -> list[str]:
    """All of the above but axe, in the look that the page has now."""
    return find_faults_of_text(visit) + find_faults_of_look(visit) + find_faults_of_loading(visit)


def find_faults_in_every_look(visit: Visit) -> list[str]:
    """All of the above but axe, with the page light and dark, on a desktop and on a phone."""
    faults = find_faults_of_text(visit)
    for width in (DESKTOP, PHONE):
        visit.page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            visit.page.emulate_media(color_scheme=theme)
            visit.page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
            faults += [f"{width} px, {theme}: {fault}" for fault in find_faults_of_look(visit)]
    return faults + find_faults_of_loading(visit)


def find_faults_of_text(visit: Visit) -> list[str]:
    return find_broken_links(visit) + find_unordered_headings(visit)


def find_faults_of_look(visit: Visit) -> list[str]:
    return find_sideways_scroll(visit) + find_bad_pictures(visit) + find_undrawn_mathematics(visit)


def find_faults_of_loading(visit: Visit) -> list[str]:
    return find_requests_elsewhere(visit) + find_console_errors(visit)
