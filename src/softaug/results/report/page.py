"""The page as one HTML file: template, style, script and data put together."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from typing import Any

from softaug.results.report import sections
from softaug.results.report.markup import Markup, element, join, json_script
from softaug.results.report.sections import Content
from softaug.versions import VERSION


def render(
    content: Content, payload: dict[str, Any], *, written: str, reload_seconds: float | None = None
) -> str:
    """The whole page. reload_seconds: how long the page waits before it loads itself again; None: never.

    Only the style and script written here may run: the policy names their hashes and forbids everything else, so
    that neither a string from a run nor the page itself can reach the network.
    """
    style, script = asset("page.css"), "\n".join(asset(name) for name in ("charts.js", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; media-src blob:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    made = sections.make_sections(content)
    tasks = list(dict.fromkeys(group.task for group in content.groups))
    heading = ", ".join(tasks) if len(tasks) <= 2 else f"{len(tasks)} tasks"
    runs = len(content.records)
    heading = f"{heading}: {runs} run{'s' if runs > 1 else ''}"
    live = reload_seconds is not None
    parts: dict[str, Any] = {
        "policy": policy,
        "version": VERSION,
        "title": f"{heading} · softaug",
        "style": Markup(style),
        "live": Markup(f' data-reload-seconds="{reload_seconds:g}"') if live else "",
        "live_button": element("button", "Live", type="button", id="live", aria_pressed="true")
        if live
        else "",
        "heading": heading,
        "written": written,
        "summary": sections.summary(content),
        "navigation": join(element("li", element("a", title, href=f"#{name}")) for name, title, _ in made),
        "sections": join(
            element(
                "section",
                element("h2", title, id=f"{name}-title"),
                html,
                id=name,
                aria_labelledby=f"{name}-title",
            )
            for name, title, html in made
        ),
        "data": json_script("data", payload),
        "script": Markup(script),
    }
    # In one pass: what is put in is never searched for further placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(join([parts[match[1]]])), asset("page.html"))


def asset(name: str) -> str:
    """A file of this package."""
    return (importlib.resources.files("softaug.results.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
