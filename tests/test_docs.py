"""The documentation site builds strictly, needs no network, and its drawing shows the layers of today."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import hooks  # noqa: E402
import layers  # noqa: E402


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    pages = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "tutorial.html", "api.html", "results/index.html", "methods/soda.html"} <= set(
        pages
    )
    for name, page in pages.items():
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]*)"', page)
        assert not loaded, f"{name} loads {loaded}"
        assert "arithmatex" not in page, f"{name} has an equation that was not drawn"
    assert "softaug.training.run.train" in pages["api.html"]
    assert "--eval-episodes" in pages["commands.html"]


@pytest.mark.parametrize(
    ("target", "fails"),
    [
        ("glossary.md", False),
        ("../README.md", False),
        ("../src/softaug/cli.py", False),
        ("../src/softaug/no_such_file.py", True),
        ("no_such_page.md", True),
        ("../../outside.md", True),
    ],
)
def test_a_link_to_a_missing_file_is_a_warning(target, fails, caplog):
    """Strict builds fail at a warning of a logger below `mkdocs`."""
    written = hooks.link("", "there", target, "docs/page.md", "page.md", fake_config())
    assert bool(caplog.records) is fails
    assert all(r.name.startswith("mkdocs.") and r.levelname == "WARNING" for r in caplog.records)
    if target == "../README.md":
        assert written == "[there](index.md)"
    if target == "../src/softaug/cli.py":
        assert written == "there (`src/softaug/cli.py`)"


def fake_config(repo_url=None):
    class Config:
        pass

    config = Config()
    config.repo_url = repo_url
    return config


def test_files_are_linked_once_the_repository_has_an_address():
    config = fake_config("https://example.org/softaug/")
    for target, address in (("../../src", "tree/main/src"), ("../../README.md#x", None)):
        written = hooks.link("", "there", target, "docs/methods/page.md", "methods/page.md", config)
        assert written == (
            f"[there](https://example.org/softaug/{address})" if address else "[there](../index.md#x)"
        )


def test_links_in_code_stay():
    class page:
        class file:
            src_uri = "page.md"

    text = "`[a](b)` and\n```\n[a](no_such_file.md)\n```\n[a](https://example.org) [b](#there)"
    assert hooks.on_page_markdown(text, page, fake_config(), None) == text


@pytest.mark.parametrize(
    "tex", [r"\mathcal L_{SODA}=\tfrac12\lVert z\rVert_2^2", r"\hat z = \frac1B\sum_i \log x_i"]
)
def test_equations_are_drawn(tex):
    drawn = hooks.equation(tex, display=False)
    assert drawn.startswith("<svg") and "<use" in drawn  # glyphs
    assert not re.search(r"#[0-9a-f]{6}\b", drawn)  # in the color of the text
    assert 'aria-label="' in drawn


def test_an_equation_that_cannot_be_drawn_is_an_error():
    with pytest.raises(ValueError, match="nosuchthing"):
        hooks.equation(r"\nosuchthing x", display=True)


def test_the_drawing_shows_the_layers_of_today():
    assert layers.DRAWING.read_text() == layers.draw(), "run: python docs/layers.py"


def test_the_architecture_page_names_every_layer():
    page = (ROOT / "docs" / "architecture.md").read_text()
    missing = [name for layer in layers.layers() for name in layer if not re.search(rf"`{name}/?`", page)]
    assert not missing


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


AVOIDED = re.compile(
    r"\b(pictures?|mend(ed|s)?|reckon(ed|s)?|go(es)? on|shall|besides?|colours?|optimis\w+)\b", re.IGNORECASE
)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.stem
)
def test_pages_use_the_words_of_the_project(path):
    """CONTRIBUTING.md says which ones instead. Code is left alone."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
    assert not [found[0] for found in AVOIDED.finditer(text)]


def test_help_uses_the_words_of_the_project():
    text = hooks.command_help()
    assert "softaug train" in text
    assert not [text[found.start() - 30 : found.end() + 10] for found in AVOIDED.finditer(text)]
