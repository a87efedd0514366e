"""The page as one HTML file: templates, style, script and data put together."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from softaug.results.report import tables
from softaug.results.report.media import VIDEO_BYTES, image_uri
from softaug.results.report.sections import Content, by_benchmark, comparability
from softaug.results.report.settings import settings_of
from softaug.versions import VERSION


@cache
def environment() -> jinja2.Environment:
    """The templates. Every string is escaped unless it was made here; a name that does not exist is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    shown = (tables.number, tables.commas, tables.span, tables.duration, tables.breakable, tables.few)
    made.filters |= {function.__name__: function for function in (*shown, tables.which_runs, tables.mean_std)}
    made.filters["data_uri"] = image_uri
    made.filters["pairs"] = lambda names: [(name, name) for name in names]
    known = (
        tables.dash,
        tables.iqm,
        tables.paper_of,
        tables.published_of,
        tables.who_columns,
        tables.best_results,
    )
    made.globals |= {
        function.__name__: function for function in (*known, settings_of, comparability, by_benchmark)
    }
    made.globals["video_megabytes"] = f"{VIDEO_BYTES / 1e6:.0f}"
    return made


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
    return (
        environment()
        .get_template("page.html")
        .render(
            content=content,
            payload=payload,
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            version=VERSION,
            written=written,
            reload_seconds=reload_seconds,
        )
    )


def asset(name: str) -> str:
    """A file of this package."""
    return (importlib.resources.files("softaug.results.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
