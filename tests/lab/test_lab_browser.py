"""The lab's page in a real browser: controls, uploads, links, recording, evaluation, keyboard, phone, restart."""

from __future__ import annotations

import base64
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_agents import tiny_lab_agent
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from serving import Serving  # noqa: E402
from serving import until as wait_for  # noqa: E402

pytestmark = pytest.mark.slow
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--use-fake-device-for-media-stream",
         "--use-fake-ui-for-media-stream"]  # fmt: skip
DRAW_LATE = """
    const decode = window.createImageBitmap.bind(window);
    window.createImageBitmap = async (image) => {
        await new Promise((resolve) => { setTimeout(resolve, 150); });
        return decode(image);
    };
"""
"""Every frame is drawn late: a test that does not wait for the frame it asked for fails always, not now and then."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(
        [tiny_lab_agent(seed=0), tiny_lab_agent("soda_overlay", seed=1)], tmp_path_factory.mktemp("lab")
    )
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in names if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page of the lab, and what it complained about."""

    def __init__(self, browser: Any, address: str) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self.page.add_init_script(DRAW_LATE)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)
        until(self.page, "document.body.dataset.frame")

    def close(self) -> None:
        self.context.close()


def until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript. Playwright's own wait uses eval, which the page's policy forbids."""
    for _ in range(1800):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never happened: {condition}")


@pytest.fixture(scope="module")
def opened(browser: Any, serving: Serving) -> Iterator[Opened]:
    """One page for all tests; it starts paused."""
    made = Opened(browser, serving.address + "?paused=1&seed=3")
    yield made
    made.close()


@pytest.fixture
def page(opened: Opened) -> Iterator[Any]:
    """The page in the training appearance, paused; afterwards it has complained about nothing."""
    opened.complaints.clear()
    after(opened.page, lambda: opened.page.click("#plain"))
    yield opened.page
    assert not opened.complaints


def hashes(page: Any) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('.stage')].map((stage) => stage.dataset.hash)")


def after(page: Any, act: Any) -> list[str]:
    """The hashes of a frame that shows what `act` asked for: any new frame may still be of an earlier request."""
    before = number(page, "asked")
    act()
    until(page, f"Number(document.body.dataset.asked) > {before}")
    until(page, "Number(document.body.dataset.change) >= Number(document.body.dataset.asked)")
    return hashes(page)


def number(page: Any, name: str) -> int:
    """frame: of the newest frame; change: of the last request that it shows; asked: of the last request."""
    return int(page.evaluate(f"document.body.dataset.{name} || 0"))


def slide(page: Any, name: str, value: float) -> list[str]:
    script = """([id, value]) => {
        const input = document.getElementById(id);
        input.value = value;
        input.dispatchEvent(new Event("input", { bubbles: true }));
    }"""
    return after(page, lambda: page.evaluate(script, [f"set-{name}", str(value)]))


def canvas(page: Any, selector: str) -> np.ndarray:
    """The pixels of a canvas (H, W, 3), as they are shown."""
    address = page.evaluate("(selector) => document.querySelector(selector).toDataURL()", selector)
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def test_the_page_shows_both_agents(page: Any) -> None:
    assert page.inner_text("#agent-0") == "sac 0"
    assert page.inner_text("#agent-1") == "soda_overlay 1"
    assert canvas(page, "#scene-0").shape == (320, 320, 3)
    assert canvas(page, "#seen-1").shape == (12, 12, 3)
    assert canvas(page, "#scene-1").std() > 15


def test_sliders_change_the_frames_and_the_address(page: Any) -> None:
    plain = hashes(page)
    for name, value in (("roll", 90), ("hue", 120), ("light", 0.3)):
        changed = slide(page, name, value)
        assert all(new != old for new, old in zip(changed, plain, strict=True)), name
        assert f"{name}=" in page.url
        assert slide(page, name, {"roll": 0, "hue": 0, "light": 1}[name]) == plain


def test_colors_modes_and_surprises(page: Any) -> None:
    plain = hashes(page)
    assert after(page, lambda: page.fill("#set-sky", "#ff0000")) != plain
    assert canvas(page, "#scene-0")[:40].reshape(-1, 3).mean(0).argmax() == 0
    assert after(page, lambda: page.click("button[aria-label^='Sky']")) == plain
    assert "sky" not in page.url
    assert after(page, lambda: page.select_option("#set-mode", "video_hard")) != plain
    assert "mode=video_hard" in page.url
    assert float(page.inner_text("#readings .distance output >> nth=0")) > 0
    before = page.url
    assert after(page, lambda: page.click("#surprise")) != plain
    assert page.url != before


def test_every_one_of_many_quick_requests_counts(page: Any) -> None:
    """None waits for the one before it; the last frame shows all of them, in their order."""
    plain, paused = hashes(page), page.inner_text("#pause")

    def hurry() -> None:
        page.evaluate("""() => {
            const slide = (id, value) => {
                const input = document.getElementById(id);
                input.value = value;
                input.dispatchEvent(new Event("input", { bubbles: true }));
            };
            slide("set-roll", 45);
            document.getElementById("plain").click();
            for (let count = 0; count < 2; count += 1) document.getElementById("pause").click();
            slide("set-hue", 90);
        }""")

    assert after(page, hurry) != plain
    assert "hue=90" in page.url and "roll" not in page.url
    assert page.inner_text("#pause") == paused
    assert slide(page, "hue", 0) == plain


def test_an_uploaded_image_appears_behind_the_walker(page: Any, opened: Opened, tmp_path: Path) -> None:
    Image.new("RGB", (80, 60), (0, 255, 0)).save(tmp_path / "green.png")
    after(page, lambda: page.set_input_files("#set-upload", str(tmp_path / "green.png")))
    assert "background=upload" in page.url
    shown = canvas(page, "#scene-0").astype(int)
    green = (shown[..., 1] > 200) & (shown[..., 0] < 60) & (shown[..., 2] < 60)
    assert green[:60].mean() > 0.9
    assert green[-60:].mean() < 0.05
    (tmp_path / "bad.png").write_bytes(b"nonsense")
    page.set_input_files("#set-upload", str(tmp_path / "bad.png"))
    until(page, "document.getElementById('message').textContent.includes('no PNG image')")
    opened.complaints[:] = [
        said for said in opened.complaints if "400" not in said
    ]  # the browser's own remark


def test_the_webcam_appears(page: Any, opened: Opened) -> None:
    plain = canvas(page, "#scene-0")
    after(page, lambda: page.select_option("#set-background", "webcam"))
    assert "webcam" in page.url

    def sky_changed() -> bool:
        return bool(np.abs(canvas(page, "#scene-0")[:40].astype(int) - plain[:40]).mean() > 20)

    for _ in range(200):
        if sky_changed():
            break
        page.wait_for_timeout(100)
    assert sky_changed()


def test_a_link_restores_the_scene_bit_for_bit(page: Any, browser: Any) -> None:
    slide(page, "roll", 20)
    after(page, lambda: page.click("#step"))
    page.evaluate("delete document.getElementById('link').dataset.link")
    page.click("#link")
    until(page, "document.getElementById('link').dataset.link")
    other = Opened(browser, page.evaluate("document.getElementById('link').dataset.link"))
    try:
        assert hashes(other.page) == hashes(page)
        assert other.page.input_value("#set-roll") == "20"
        assert other.page.inner_text("#pause") == "Continue"
    finally:
        other.close()


def test_keyboard_and_pointer(page: Any) -> None:
    def decided() -> list[str]:
        """What the first decision of this episode leads to."""
        after(page, lambda: page.keyboard.press("r"))
        return after(page, lambda: page.keyboard.press("s"))

    page.focus("#scene-0")
    free = decided()
    assert decided() == free
    page.keyboard.down("ArrowRight")
    pushed = decided()
    page.keyboard.up("ArrowRight")
    assert pushed[0] != free[0]
    assert pushed[1] == free[1]  # the other agent is left alone
    assert decided() == free
    box = page.locator("#scene-1").bounding_box()
    after(page, lambda: page.keyboard.press("r"))
    page.mouse.move(*middle_of_the_walker(page, box))
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2)
    page.mouse.up()
    dragged = after(page, lambda: page.keyboard.press("s"))
    assert dragged[1] != free[1]
    assert dragged[0] == free[0]
    after(page, lambda: page.keyboard.press("p"))
    assert page.inner_text("#pause") == "Pause"
    after(page, lambda: page.keyboard.press("p"))
    assert page.inner_text("#pause") == "Continue"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def middle_of_the_walker(page: Any, box: dict[str, float]) -> tuple[float, float]:
    """A point of the window on the second agent's body, which is orange on blue."""
    scene = canvas(page, "#scene-1").astype(int)
    walker = np.argwhere(scene @ [1, 0, -1] > 60)
    row, column = (walker[len(walker) // 2] + 0.5) / len(scene)
    return box["x"] + column * box["width"], box["y"] + row * box["height"]


def test_recording_and_evaluation(page: Any) -> None:
    page.click("#record")
    after(page, lambda: page.click("#pause"))
    begun = number(page, "frame")
    until(page, f"Number(document.body.dataset.frame) > {begun + 6}")
    page.click("#record")
    after(page, lambda: page.click("#pause"))
    until(page, "document.querySelectorAll('#recording a').length === 3")
    address = page.evaluate("document.querySelector('#recording a').href")
    script = """async (address) => {
        const video = document.createElement("video");
        video.muted = true;
        video.src = URL.createObjectURL(await (await fetch(address)).blob());
        await new Promise((resolve, reject) => { video.onloadeddata = resolve; video.onerror = reject; });
        return [video.videoWidth, video.videoHeight, video.duration];
    }"""
    width, height, seconds = page.evaluate(script, address)
    assert (width, height) == (644, 352)
    assert seconds > 0.1
    page.fill("#episodes", "50")
    page.click("#start-test")
    until(page, "document.getElementById('results-body').rows.length === 1")
    page.click("#stop-test")
    until(page, "document.getElementById('testing').textContent === 'Stopped'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_findings(page: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page.emulate_media(color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    found = axe.Axe().run(page).response["violations"]
    serious = [entry for entry in found if entry["impact"] in ("serious", "critical")]
    assert not serious, [(entry["id"], [node["html"] for node in entry["nodes"]]) for entry in serious]


def test_phone_width_needs_no_sideways_scrolling(page: Any) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        page.locator("#set-noise").scroll_into_view_if_needed()
        box = page.locator("#scene-0").bounding_box()
        assert 0 <= box["y"] < 100  # the scenes stay in view while the controls scroll
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_a_hidden_tab_stops_the_simulation(page: Any, serving: Serving) -> None:
    after(page, lambda: page.click("#pause"))
    begun = number(page, "frame")
    until(page, f"Number(document.body.dataset.frame) > {begun + 2}")
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    (shown,) = serving.lab.pages
    wait_for(lambda: not shown._visible and not shown._ticking.locked(), what="the last tick is over")
    ticks = shown._session._number
    page.wait_for_timeout(1500)
    assert shown._session._number == ticks
    page.evaluate(hide, False)
    wait_for(lambda: shown._session._number > ticks)
    after(page, lambda: page.click("#pause"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_the_command_shows_the_policies_of_the_zoo(browser: Any, tmp_path: Path) -> None:
    """As a user starts it: `softaug lab`, without agents, in an empty folder."""
    command = [sys.executable, "-m", "softaug.cli", "lab", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as lab:
        try:
            assert lab.stdout is not None
            address = lab.stdout.readline().split()[-1]
            opened = Opened(browser, address)
            watch_the_zoo(opened.page)
            assert not opened.complaints
            opened.close()
        finally:
            lab.terminate()
        assert lab.wait(180) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def watch_the_zoo(page: Any) -> None:
    """Trained policies: they stand as long as they see what they were trained with."""
    assert [page.inner_text(f"#agent-{agent}") for agent in (0, 1)] == ["SAC", "SODA (overlay)"]
    assert "50,000 decisions" in page.inner_text("#readings")
    after(page, lambda: page.click("#pause"))
    for _ in range(30):
        if decisions(page)[0] >= 20:
            break
        after(page, lambda: page.click("#step"))
    assert len(set(decisions(page))) == 1
    returns = [float(page.inner_text(f"#return-{agent}")) for agent in (0, 1)]
    # A decision is worth 4 at most; lying on the ground, as untrained policies do, about 0.3.
    assert all(total > 1.5 * decisions(page)[0] for total in returns)
    assert canvas(page, "#seen-0").shape == (50, 50, 3)
    assert distances(page) == [[0.0, 0.0], [0.0, 0.0]]
    plain = hashes(page)
    hard = after(page, lambda: page.select_option("#set-mode", "video_hard"))
    assert not set(hard) & set(plain)
    assert min(moved for agent in distances(page) for moved in agent) > 0.0
    assert len(set(decisions(page))) == 1  # the same state in another appearance
    assert after(page, lambda: page.click("#plain")) == plain
    assert distances(page) == [[0.0, 0.0], [0.0, 0.0]]


def decisions(page: Any) -> list[int]:
    return page.evaluate(
        "[...document.querySelectorAll('.stage')].map((stage) => Number(stage.dataset.decisions))"
    )


def distances(page: Any) -> list[list[float]]:
    """Of features and actions, for each agent."""
    return page.evaluate("""[...document.querySelectorAll('.reading')].map((reading) =>
        [...reading.querySelectorAll('.distance output')].map((output) => Number(output.textContent)))""")


def test_a_frame_that_cannot_be_drawn_is_left_out(page: Any, opened: Opened) -> None:
    page.evaluate("""() => {
        const decode = window.createImageBitmap;
        window.createImageBitmap = async () => { window.createImageBitmap = decode; throw new Error("damaged"); };
    }""")
    before = number(page, "frame")
    page.click("#step")
    for _ in range(600):
        if opened.complaints:
            break
        page.wait_for_timeout(100)  # in which the browser's messages arrive
    assert [text for text in opened.complaints if "could not be drawn" in text]
    page.click("#step")
    until(page, f"Number(document.body.dataset.frame) > {before}")
    assert number(page, "frame") > before
    opened.complaints.clear()


def test_the_page_survives_a_restart_of_the_server(opened: Opened, serving: Serving) -> None:
    """The last test: with the same token it continues by itself, with another it says what to do."""
    page = opened.page
    token = serving.lab.token
    slide(page, "roll", 33)
    page.click("#record")
    page.click("#start-test")
    serving.stop()
    until(
        page, "document.getElementById('message').textContent.includes('connection to softaug lab is lost')"
    )
    serving.start(token)
    until(page, "document.body.dataset.state === 'open' && document.body.dataset.frame")
    assert page.input_value("#set-roll") == "33"
    # The recording and the evaluation ended with the server.
    assert page.inner_text("#record") == "Record" and page.is_enabled("#start-test")
    serving.stop()
    serving.start()
    until(page, "document.getElementById('message').textContent.includes('started anew')")
    assert "roll=33" in page.inner_text("#message")
