"""What `mkdocs build` does besides rendering the pages of this folder.

- Some files of the repository are pages too (`PAGES`): the README is the home page.
- Pages link to each other as on a code host, that is by paths in the repository. A link to a page becomes a link within
  the site; a link to any other file becomes a link to `repo_url`, or plain text while there is none. A link to a
  file that does not exist fails the build.
- Equations become SVG, so that the site needs no script from elsewhere.
- The page of commands gets the `--help` of each.
"""

from __future__ import annotations

import argparse
import html
import io
import logging
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# A warning of a logger below "mkdocs" fails a strict build.
log = logging.getLogger("mkdocs.hooks.softaug")

# File of the repository -> its path in the site. All of docs/ is in the site as it is.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "results/README.md": "results/README.md",
    "results/small/README.md": "results/small/README.md",
    "results/small/curves.png": "results/small/curves.png",
    "results/fidelity/differential.md": "results/fidelity/differential.md",
}
SOURCES = {uri: path for path, uri in PAGES.items()}

HELP_MARK = "<!-- The hook puts the help of every command here. -->"
CODE_OR_LINK = re.compile(
    r"(?P<fence>^(?P<ticks>```+|~~~+).*?^(?P=ticks)[ ]*$)"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)"
    r"|(?P<code>`[^`\n]+`)",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    os.environ["COLUMNS"] = "100"  # argparse's width of help texts
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links by repository paths into links that hold in the site."""
    uri = page.file.src_uri
    path = SOURCES.get(uri, f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or re.match(r"[a-z]+:|#", target):  # code, a web address, this page
            return match[0]
        return link(match["image"] or "", match["text"], target, path, uri, config)

    return CODE_OR_LINK.sub(rewritten, markdown).replace(
        HELP_MARK, command_help() if HELP_MARK in markdown else ""
    )


def command_help() -> str:
    """`softaug COMMAND --help` of every command, as Markdown."""
    from softaug.cli import COMMANDS, build_parser

    sections = []
    for name in COMMANDS:
        (subparsers,) = (a for a in build_parser(name)._actions if isinstance(a, argparse._SubParsersAction))
        text = subparsers.choices[name].format_help()
        sections.append(f"## `softaug {name}`\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(sections)


def link(image: str, text: str, target: str, path: str, uri: str, config: MkDocsConfig) -> str:
    """The link of the page at `path` (in the repository) and `uri` (in the site) to `target`, as Markdown."""
    address, _, anchor = target.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), address))
    if wanted.startswith("..") or not (ROOT / wanted).exists():
        log.warning("%s links to %s, which does not exist", path, target)
        return text
    end = f"#{anchor}" if anchor else ""
    in_site = PAGES.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
    if in_site is not None and (ROOT / wanted).is_file():
        return f"{image}[{text}]({posixpath.relpath(in_site, posixpath.dirname(uri) or '.')}{end})"
    if config.repo_url:
        kind = "tree" if (ROOT / wanted).is_dir() else "blob"
        return f"[{text}]({config.repo_url.rstrip('/')}/{kind}/main/{wanted}{end})"
    if text.strip("`") in wanted:  # the text is the file's name: its whole path says where it is
        return f"`{wanted}`"
    return f"{text} (`{wanted}`)"


EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
# LaTeX that Matplotlib writes otherwise.
MATHTEXT = {
    r"\\(mathcal|mathbb|hat|bar|tilde) (\w)": r"\\\1{\2}",
    r"\\tfrac": r"\\frac",
    r"frac(\w)(\w)": r"frac{\1}{\2}",
    r"frac(\w)\{": r"frac{\1}{",
    r"\\[lr]Vert": r"\\Vert",
    r"\\[lr]vert": "|",
    r"\\[bB]ig([()\[\]])": r"\1",
}
POINTS = 100  # Matplotlib rounds sizes to whole points, so equations are drawn large; the page scales them


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the equations."""

    def drawn(match: re.Match[str]) -> str:
        tex = " ".join(html.unescape(match["tex"]).split())
        try:
            return equation(tex, display=match["tag"] == "div")
        except ValueError as error:
            log.warning("%s: the equation %s cannot be drawn: %s", page.file.src_uri, tex, error)
            return match[0]

    return EQUATION.sub(drawn, content)


def equation(tex: str, display: bool) -> str:
    r"""`tex` as inline SVG in the color of the text; a displayed one may break at its \qquad."""
    if display:
        large = re.sub(r"\\frac\b", r"\\dfrac", tex)
        parts = [part.strip() for part in large.split(r"\qquad") if part.strip()]
        return f'<div class="equation">{"".join(map(draw, parts))}</div>'
    return draw(tex)


def draw(tex: str) -> str:
    """One line of LaTeX as an SVG element whose size and baseline are in em."""
    import matplotlib
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    mathtext = tex
    for latex, ours in MATHTEXT.items():
        mathtext = re.sub(latex, ours, mathtext)
    file = io.BytesIO()
    with matplotlib.rc_context({"mathtext.fontset": "stix", "savefig.transparent": True}):
        depth = math_to_image(f"${mathtext}$", file, prop=FontProperties(size=POINTS), dpi=72, format="svg")
    svg = file.getvalue().decode()
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if box is None:
        raise ValueError("Matplotlib's SVG has no viewBox")
    width, height, below = (float(size) / POINTS for size in (*box.groups(), depth))
    style = f"width:{width:.2f}em;height:{height:.2f}em;vertical-align:{-below:.2f}em"
    drawing = svg[svg.index('<g id="figure_1">') : svg.rindex("</svg>")]
    drawing = re.sub(r"<!--.*?-->|\bid=\"[a-z]+_\d+\"", "", drawing, flags=re.DOTALL)
    drawing = " ".join(drawing.replace("#000000", "currentColor").split())
    return (
        f'<svg class="tex" fill="currentColor" role="img" aria-label="{html.escape(tex, quote=True)}" style="{style}" '
        f'viewBox="{box[0][9:-1]}" xmlns:xlink="http://www.w3.org/1999/xlink">{drawing}</svg>'
    )
