"""Keep the book quiet: no page asks another host for anything, none writes an error to the console."""

import re

from sphinx.application import Sphinx


def show_a_logo_in_either_mode(app: Sphinx, config) -> None:
    """Jupyter Book passes on one logo only, so that the dark one is named here."""
    config.html_theme_options["logo"] = {
        "image_light": "book/_static/logo.svg",
        "image_dark": "book/_static/logo-dark.svg",
        "alt_text": "tinyinfer, home",
    }


def drop_thebe(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Thebe runs cells on another host's kernel. It isn't used here, and its script is declared twice."""
    context["script_files"] = [
        script for script in context["script_files"] if "thebe" not in str(vars(script) if vars(script) else script)
    ]
    context["css_files"] = [sheet for sheet in context["css_files"] if "thebe" not in str(sheet)]
    context.setdefault("default_mode", "auto")  # without one the theme warns at the first visit
    if not context["default_mode"]:
        context["default_mode"] = "auto"


def mend_roles(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Three pieces of Sphinx's HTML that axe calls serious: citations outside their list, definitions without a term,
    and, on the page of all modules, a list outside an item."""

    def as_lines(signature: re.Match) -> str:
        lines = signature[2].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
        return f"{signature[1]}{lines}{signature[3]}"

    if body := context.get("body"):
        body = body.replace('role="doc-biblioentry"', 'role="listitem"')
        parameters = r'(<span class="sig-paren">\(</span>)\s*<dl>(.*?)</dl>\s*(<span class="sig-paren">\))'
        context["body"] = re.sub(parameters, as_lines, body, flags=re.DOTALL)
        if pagename == "_modules/index":
            context["body"] = re.sub(r"</li>\s*<ul>", "<ul>", body)


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", show_a_logo_in_either_mode, priority=900)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("html-page-context", mend_roles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
