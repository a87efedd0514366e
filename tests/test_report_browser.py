"""The report in a real browser: what it draws, plays, sorts and keeps, by pointer and by keyboard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabricated import fabricate_run

from softaug.evaluation.recording import Recorder
from softaug.results.report import Reporter

playwright = pytest.importorskip("playwright.sync_api")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
CATCH_INTERVALS = "window.dues = []; window.setInterval = (due, ms) => window.dues.push([due, ms]);"
"""Playwright's clock waits for its own call to end, forever if the call makes the page load itself again."""
HOSTILE = "<img src=x onerror=pwned=1></script><script>pwned=1</script>"
MODES = ("train", "color_hard", "video_easy")
LEVELS = {"sac": 500.0, "soda": 800.0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    if chromium is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds each, on one task, one of them on a second; with videos."""
    folder = tmp_path_factory.mktemp("report")
    video = folder / "video.mp4"
    rng = np.random.default_rng(0)
    with Recorder(video, min_size=32) as recorder:
        for _ in range(30):
            recorder.add(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    for method, level in LEVELS.items():
        for seed in (0, 1):
            run = folder / "runs" / f"{method}{seed}"
            returns = {"train": [level + 20 * seed], "color_hard": [level / 2], "video_easy": [level / 4]}
            fabricate_run(run, "walker_stand", method, seed, returns=returns, level=level)
            (run / "videos" / "000003000").mkdir(parents=True)
            for mode in MODES:
                shutil.copy(video, run / "videos" / "000003000" / f"{mode}.mp4")
    fabricate_run(folder / "runs" / "other", "finger_spin", "sac", returns={"train": [99.0]})
    return Reporter([folder / "runs"], samples=False).write(folder / "report.html").out


class Opened:
    """A page and what it complained about or asked for."""

    def __init__(
        self, browser: Any, path: Path, width: int = 1280, scheme: str = "light", timers: bool = False
    ):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(90_000)  # for busy machines
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        if timers:  # the page's intervals run when the test says so
            self.page.add_init_script(CATCH_INTERVALS)
        self.page.goto(path.as_uri())

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "blob:", "data:")):
            self.complaints.append(request.url)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.complaints


def until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript. Playwright's own wait uses eval, which the page's policy forbids."""
    for _ in range(900):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never happened: {condition}")


def column(page: Any, title: str, table: str = "#panel-0-0 table") -> list[str]:
    """The texts of the visible rows under a heading."""
    return page.evaluate(
        """([table, title]) => {
            const heads = [...document.querySelector(table).tHead.rows[0].cells];
            const index = heads.findIndex((head) => head.textContent === title);
            const rows = [...document.querySelector(table).tBodies[0].rows].filter((row) => !row.hidden);
            return rows.map((row) => (row.cells[index].querySelector(".value") || row.cells[index].firstChild).textContent);
        }""",
        [table, title],
    )


def test_curves_are_drawn_and_read_by_pointer_and_keyboard(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.select_option("#curves-task", "walker_stand")
        page.select_option("#curves-what", "train")
        lines = page.locator("#curves-chart path.line")
        assert lines.count() == 2 and page.locator("#curves-chart path.band").count() == 2
        box = lines.nth(1).bounding_box()
        assert box["width"] > 300 and box["height"] > 50
        plot = page.locator("#curves-chart .plot")
        plot.focus()
        page.keyboard.press("End")
        said = plot.get_attribute("aria-valuetext")
        assert (
            said
            == "3,000 decisions: SODA (overlay) 810 ± 10.0 (2 seeds); SAC (RAD: random crop) 510 ± 10.0 (2 seeds)"
        )
        page.keyboard.press("Home")
        assert plot.get_attribute("aria-valuetext").startswith("1,000 decisions")
        page.keyboard.press("Escape")
        tip = page.locator("#curves-chart .tip")
        assert tip.is_hidden()
        area = plot.bounding_box()
        plot.hover(position={"x": area["width"] * 0.5, "y": area["height"] * 0.5})
        assert tip.is_visible() and "2,000 decisions" in tip.inner_text()
        page.select_option("#curves-unit", "frames")
        plot.focus()
        page.keyboard.press("End")
        assert plot.get_attribute("aria-valuetext").startswith("12,000 frames")
        assert "media" not in page.inner_html("#curves-chart")
        page.select_option("#curves-what", "video_easy")
        assert "return in video_easy, procedural media" in page.inner_html("#curves-chart")


def test_curves_of_other_media_are_told_apart(browser: Any, tmp_path: Path) -> None:
    for number, method in enumerate(("sac", "soda", "soda")):
        fabricate_run(
            tmp_path / "runs" / str(number), method=method, seed=number, returns={"video_easy": [50.0]}
        )
    for number in (0, 1):  # SODA: one seed of each kind
        file = tmp_path / "runs" / str(number) / "metrics.jsonl"
        file.write_text(file.read_text().replace('"procedural"', f'"{["folder", "official"][number]}"'))
    out = Reporter([tmp_path / "runs"], samples=False).write(tmp_path / "report.html").out
    with Opened(browser, out) as page:
        page.select_option("#curves-what", "video_easy")
        note = page.inner_text("#curves-note")
        assert "not comparable" in note and "SAC (RAD: random crop): folder media." in note
        assert "SODA (overlay): official media (1 seed evaluated on other media left out)." in note


def test_curves_show_single_seeds_and_a_table(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.select_option("#curves-task", "walker_stand")
        assert page.locator("#curves-chart path.faint").count() == 0
        page.check("#curves-seeds")
        assert page.locator("#curves-chart path.faint").count() == 4
        page.click("text=These curves as a table")
        # The table is filled when the browser tells of the toggle, which is after the click.
        playwright.expect(page.locator("#curves-table tbody tr")).to_have_count(2)
        page.select_option("#curves-task", "finger_spin")
        playwright.expect(page.locator("#curves-table tbody tr")).to_have_count(1)
        assert page.locator("#curves-chart path.line").count() == 1


def test_methods_are_switched_off_everywhere_by_keyboard(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        for part in ("curves", "gap"):
            page.select_option(f"#{part}-task", "walker_stand")
        shown = page.locator('#gap-chart g[data-series="SODA (overlay)"]')
        assert shown.count() == 2
        key = page.locator("#curves-chart .key", has_text="SODA (overlay)")
        assert key.get_attribute("aria-pressed") == "true"
        key.focus()
        page.keyboard.press("Space")
        assert key.get_attribute("aria-pressed") == "false"
        assert shown.count() == 0 and page.locator("#curves-chart path.line").count() == 1
        assert page.evaluate("document.activeElement.dataset.name") == "SODA (overlay)"
        page.keyboard.press("Enter")
        assert shown.count() == 2


def test_gap_chart_places_dots_by_value(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.select_option("#gap-task", "walker_stand")
        page.select_option("#gap-what", "returns")
        titles = page.locator('#gap-chart g[data-series="SODA (overlay)"] .dot title').all_text_contents()
        assert titles[0] == "SODA (overlay), train: 810 ± 10.0 (2 seeds)"
        xs = page.evaluate(
            """[...document.querySelectorAll('#gap-chart g[data-series="SODA (overlay)"] circle.dot')].map(c => +c.getAttribute("cx"))"""
        )
        # 810, 400 and 200 on one linear axis
        assert (xs[0] - xs[1]) / (xs[1] - xs[2]) == pytest.approx(410 / 200)
        assert page.locator("#gap-chart .paper").count() > 0
        assert page.locator("#gap tbody tr:visible").count() == 2


def test_performance_profile_is_drawn(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.select_option("#profile-mode", "color_hard")
        assert page.locator("#profile-chart path.line").count() == 2
        note = page.inner_text("#profile-note")
        assert note.startswith(
            "preset small, 3,000 decisions, procedural media: walker_stand; 2 runs a method"
        )
        plot = page.locator("#profile-chart .plot")
        plot.focus()
        for _ in range(31):
            page.keyboard.press("ArrowRight")
        assert (
            plot.get_attribute("aria-valuetext")
            == "0.30 threshold: SODA (overlay) 100 %; SAC (RAD: random crop) 0 %"
        )


def test_tables_sort_by_click_and_keyboard(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        assert column(page, "train") == ["99.0", "510", "810"]
        head = page.locator("#panel-0-0 thead th", has_text="train")
        head.locator("button").click()
        assert (
            column(page, "train") == ["810", "510", "99.0"]
            and head.get_attribute("aria-sort") == "descending"
        )
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert (
            column(page, "train") == ["99.0", "510", "810"] and head.get_attribute("aria-sort") == "ascending"
        )
        page.locator("#panel-0-0 thead th", has_text="color_hard").locator("button").click()
        assert column(page, "color_hard") == ["400", "250", "–"]
        assert head.get_attribute("aria-sort") is None
        page.locator("#panel-0-0 thead th", has_text="color_hard").locator("button").click()
        assert column(page, "color_hard") == ["250", "400", "–"]  # what is empty stays last
        page.select_option("#results-task", "walker_stand")
        assert column(page, "train") == ["510", "810"]


BOARD, OVER_TASKS = "#board table >> nth=0", "#board table >> nth=1"


def shown(page: Any, table: str) -> list[str]:
    """The visible rows' methods and where their numbers come from."""
    rows = page.locator(f"{table} >> tbody tr:visible").all()
    return [
        f"{row.locator('.method span >> nth=1').inner_text()}|{row.get_attribute('data-origin')}"
        for row in rows
    ]


def test_leaderboard_is_filtered_and_sorted(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.select_option("#board-task", "walker_stand")
        page.select_option("#board-mode", "video_easy")
        methods = shown(page, BOARD)
        assert "SODA (overlay)|run" in methods and "SimGRL|published" in methods
        assert page.inner_text("#board-count").startswith(f"{len(methods)} of ")
        values = [float(v.inner_text()) for v in page.locator(f"{BOARD} >> tbody tr:visible .value").all()]
        assert values == sorted(values, reverse=True) and values[0] == 973  # SimGRL's
        page.locator("#board thead button", has_text="Return").first.click()
        page.locator("#board thead button", has_text="Return").first.click()
        assert page.locator(f"{BOARD} >> tbody tr:visible .value").first.inner_text() == "125"
        page.select_option("#board-origin", "run")
        assert shown(page, BOARD) == ["SAC (RAD: random crop)|run", "SODA (overlay)|run"]
        page.check("#board-comparable")
        assert shown(page, BOARD) == [] and page.inner_text("#board-count").startswith("0 of ")
        page.select_option("#board-origin", "published")
        assert len(shown(page, BOARD)) > 5
        page.fill("#board-search", "simg")
        assert shown(page, BOARD) == ["SimGRL|published"]
        page.select_option("#board-mode", "")
        page.select_option("#board-task", "")
        assert set(shown(page, BOARD)) == {"SimGRL|published"}
        page.reload()
        assert page.input_value("#board-search") == "simg" and page.is_checked("#board-comparable")
        assert set(shown(page, BOARD)) == {"SimGRL|published"}


def test_leaderboard_over_the_tasks_that_all_have(browser: Any, tmp_path: Path) -> None:
    for task in ("walker_walk", "walker_stand"):
        fabricate_run(
            tmp_path / "runs" / task, task, "sac", returns={"video_hard": [500.0], "video_easy": [9.0]}
        )
    out = Reporter([tmp_path / "runs"], samples=False).write(tmp_path / "report.html").out
    with Opened(browser, out) as page:
        page.select_option("#board-mode", "video_hard")
        rows = shown(page, OVER_TASKS)
        assert rows[0] == "SimGRL|published" and "SAC (RAD: random crop)|run" in rows
        assert page.locator("#board-set option").all_inner_texts() == ["walker_stand, walker_walk"]
        page.check("#board-comparable")
        assert "SAC (RAD: random crop)|run" not in shown(page, OVER_TASKS)


def test_published_curves_are_thin_lines_over_frames(browser: Any, tmp_path: Path) -> None:
    fabricate_run(tmp_path / "runs" / "a", "walker_stand", "sac", decisions=60_000, eval_every=20_000)
    out = Reporter([tmp_path / "runs"], samples=False).write(tmp_path / "report.html").out
    with Opened(browser, out) as page:
        assert page.locator("#curves-chart .reference").count() == 0
        assert "choose frames" in page.inner_text("#curves-note")
        page.select_option("#curves-unit", "frames")
        assert page.locator("#curves-chart .reference").count() == 2
        assert "reported by DrQ-v2's authors" in page.inner_text("#curves-note")
        ys = page.locator("#curves-chart .reference[data-series^=DrQ] .dot").count()
        assert ys == 2  # 100,000 and 200,000 frames, not 500,000
        page.select_option("#curves-what", "color_hard")
        assert page.locator("#curves-chart .reference").count() == 0


def test_tabs_by_keyboard(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.get_by_role("tab", name="all modes").focus()
        page.keyboard.press("ArrowRight")
        chosen = page.locator("[role=tab][aria-selected=true]")
        assert chosen.inner_text() == "train"
        assert (
            page.get_by_role("tabpanel").count() == 1
            and page.is_visible("#panel-0-1")
            and page.is_hidden("#panel-0-0")
        )
        page.keyboard.press("End")
        assert chosen.inner_text() == "video_easy"
        assert page.locator("[role=tab][tabindex='0']").count() == 1


def test_every_control_is_reached_by_tab(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        seen: set[str] = set()
        for _ in range(200):
            page.keyboard.press("Tab")
            name = page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
            seen.add(name)
            if name == "BODY":
                break
        assert {"theme", "curves-task", "curves-what", "curves-seeds", "gap-what", "profile-mode", "videos-run",
                "board-task", "board-mode", "board-origin", "board-comparable", "board-search",
                "videos-play", "videos-time", "plot", "key", "scroll", "tab-0-0", "SUMMARY"} <= seen  # fmt: skip


def test_videos_play_together(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        players = "[...document.querySelectorAll('#videos-row video')]"
        until(page, f"{players}.length === 3 && {players}.every(v => v.readyState >= 2 && v.videoWidth > 0)")
        captions = page.locator("#videos-row figcaption").all_inner_texts()
        assert captions[0].startswith("train") and "mean over seeds" in captions[0]
        page.click("#videos-play")
        until(page, f"{players}.every(v => v.currentTime > 0.1 && !v.error)")
        assert page.inner_text("#videos-play") == "Pause all"
        page.click("#videos-play")
        assert page.evaluate(f"{players}.every(v => v.paused)")
        page.evaluate(
            "t => { const s = document.getElementById('videos-time'); s.value = t; s.dispatchEvent(new Event('input')) }",
            0.5,
        )
        until(page, f"{players}.every(v => Math.abs(v.currentTime / v.duration - 0.5) < 0.1)")
        page.locator("#videos-row video").first.focus()
        page.keyboard.press("Enter")
        until(page, f"{players}.map(v => v.paused).join() === 'false,true,true'")
        page.select_option("#videos-run", index=1)
        until(page, f"{players}.length === 3 && {players}.every(v => v.readyState >= 2 && v.paused)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Any, report: Path, scheme: str) -> None:
    brightness = "+getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"
    with Opened(browser, report, scheme=scheme) as page:
        first = page.evaluate(brightness)
        assert first > 200 if scheme == "light" else first < 60
        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        second = page.evaluate(brightness)
        assert second < 60 if scheme == "light" else second > 200
        page.reload()
        assert page.evaluate(brightness) == second


@pytest.mark.parametrize("width", [320, 390])
def test_no_sideways_scrolling_on_a_phone(browser: Any, report: Path, width: int) -> None:
    with Opened(browser, report, width=width) as page:
        for details in page.locator("summary").all():
            details.click()
        for tab in page.locator("[role=tab]").all():
            tab.click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#curves-chart svg").first.bounding_box()["width"] <= width


def test_hostile_names_are_inert(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "<img src=x onerror=pwned=1>"
    fabricate_run(run, task=HOSTILE, returns={"train": [5.0], "color_hard": [4.0]})
    fabricate_run(tmp_path / "runs" / ("long_" * 40), task="x" * 200, method="soda")
    facts = json.loads((run / "run.json").read_text()) | {
        "device": HOSTILE,
        "media": {HOSTILE: {HOSTILE: HOSTILE}},
    }
    (run / "run.json").write_text(json.dumps(facts))
    shutil.copytree(run, tmp_path / "runs" / HOSTILE.replace("/", "_"), dirs_exist_ok=True)
    Reporter([tmp_path / "runs"], samples=False).write(tmp_path / "report.html")
    with Opened(browser, tmp_path / "report.html", width=390) as page:
        page.wait_for_selector("#curves-chart path.line")
        page.select_option("#curves-task", HOSTILE)
        for details in page.locator("summary").all():
            details.click()
        assert page.evaluate("typeof pwned") == "undefined"
        assert page.locator("img").count() == 0 and page.locator("script").count() == 2
        assert HOSTILE in page.inner_text("main")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_policy_stops_what_would_slip_through(browser: Any, report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    attack = "<script>document.title = 'pwned'</script><img src='http://127.0.0.1:9/x.png' onerror=\"document.title='pwned'\">"
    broken.write_text(report.read_text().replace("<main>", f"<main>{attack}"))
    opened = Opened(browser, broken)
    opened.page.wait_for_selector("#curves-chart path.line")
    assert opened.page.title() != "pwned"
    assert not any(complaint == "127.0.0.1:9/x.png" for complaint in opened.complaints)  # never asked for
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)
    opened.context.close()


def test_without_a_script_the_tables_are_there(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#results table").count() == 4 and page.is_visible("#results table >> nth=3")
    context.close()


def test_live_page_loads_itself_again_and_stays_where_it_was(browser: Any, tmp_path: Path) -> None:
    run, out = tmp_path / "runs" / "a", tmp_path / "report.html"
    fabricate_run(run, returns={"train": [100.0], "color_hard": [50.0]}, finished=False)
    fabricate_run(tmp_path / "runs" / "b", method="soda", returns={"train": [100.0], "color_hard": [50.0]})
    reporter = Reporter([tmp_path / "runs"], samples=False)
    reporter.write(out, reload_seconds=600)
    opened = Opened(browser, out, timers=True)
    with opened as page:
        page.get_by_role("tab", name="color_hard").click()
        page.select_option("#curves-what", "color_hard")
        page.locator("#curves-chart .key", has_text="SODA").click()
        page.evaluate("document.activeElement.blur(); scrollTo({top: 700, behavior: 'instant'})")
        line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) | {"decisions": 2345}
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        reporter.write(out, reload_seconds=600)
        assert page.evaluate("dues.map(([_, ms]) => ms)") == [600_000]
        with page.expect_navigation():
            page.evaluate("setTimeout(dues[0][0])")
        assert "2,345" in page.inner_text("#runs")
        assert page.evaluate("scrollY") == 700
        assert page.locator("[role=tab][aria-selected=true]").inner_text() == "color_hard"
        assert page.input_value("#curves-what") == "color_hard"
        assert page.locator("#curves-chart path.line").count() == 1
        page.locator("#live").click()
        page.evaluate("mark = 1")
        page.evaluate("dues[0][0]()")
        page.wait_for_timeout(300)
        assert page.evaluate("mark") == 1  # switched off, it stands still
