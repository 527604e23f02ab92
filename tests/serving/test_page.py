"""The page in a real browser: type, click, see."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time

import pytest
from virtual import TIERS, certificate, logits, model

from apportion.serving.server.app import build_app
from apportion.serving.server.engine import ServingEngine
from apportion.serving.server.promise import Promise
from apportion.serving.server.terms import Config

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TEXT = "a b c d e f g"


def paced(input_ids, attention_mask=None, *, budget=1.0):
    """As slow as its forecast says."""
    time.sleep((0.2 + budget) * (0.002 + 0.0065 * len(input_ids)))
    return logits(input_ids, attention_mask, budget=budget)


@pytest.fixture(scope="module")
def url():
    import uvicorn

    promise = Promise(certificate(), share=1.0, salt="x")
    engine = ServingEngine(model(paced, config=Config(tiers=TIERS), promise=promise))
    engine.start()
    app = build_app(engine, name="news")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)
    engine.stop()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as play:
        shown = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield shown
        shown.close()


@pytest.fixture(params=[(1100, 900), (375, 740)], ids=["desktop", "phone"])
def page(browser, url, request):
    wide, high = request.param
    shown = browser.new_page(viewport={"width": wide, "height": high})
    shown.set_default_timeout(60_000)
    problems = []
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.goto(url)
    shown.wait_for_selector("#curve circle")
    yield shown
    assert problems == []
    shown.close()


def test_typing_and_choosing_show_answers_beside_the_whole_models(page):
    from playwright.sync_api import expect

    chosen, bars = page.locator("#chosen .facts"), page.locator("#whole .bars")
    assert page.inner_text("#name") == "news"
    assert page.inner_text("#whole .label") in ("no", "yes")
    assert "budget 0.25" in chosen.inner_text()
    page.click("#tiers button:has-text('balanced')")
    expect(chosen).to_contain_text("budget 0.5", timeout=60_000)
    assert page.get_attribute("#tiers button:has-text('balanced')", "aria-pressed") == "true"
    before = bars.text_content()
    page.fill("#text", TEXT)
    expect(bars).not_to_have_text(before, timeout=60_000)
    page.focus("#budget")
    page.keyboard.press("Home")
    expect(chosen).to_contain_text("budget 0.125", timeout=60_000)
    assert page.inner_text("#exact") == "0.125"
    assert page.locator("#curve circle").count() == page.locator("#levels tr").count() == 4
    expect(page.locator("#rung")).to_have_text("0 of 6", timeout=60_000)


def test_a_certificate_is_a_button_and_its_audits_are_shown(page):
    from playwright.sync_api import expect

    button, audits = page.locator("#tiers button:has-text('certified')"), page.locator("#audits")
    assert "1 % of these answers differ" in button.get_attribute("title")
    button.click()
    expect(page.locator("#chosen .facts")).to_contain_text("· certified", timeout=60_000)
    assert button.get_attribute("aria-pressed") == "true"
    expect(audits).to_contain_text(re.compile(r"\d of [1-9]"), timeout=60_000)
    page.click("#tiers button:has-text('balanced')")
    expect(page.locator("#chosen .facts")).not_to_contain_text("certified", timeout=60_000)


def test_nothing_is_wider_than_the_screen(page):
    wide = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert wide <= 0


def test_a_text_that_is_too_long_is_a_sentence_on_the_page(page):
    page.fill("#text", "a " * 60_000)
    page.wait_for_selector("#problem:not([hidden])")
    assert "characters are more than 100000" in page.inner_text("#problem")
    page.fill("#text", TEXT)
    page.wait_for_selector("#problem", state="hidden")


def test_load_makes_budgets_fall(page):
    """And the page counts what it sent: all of it is answered, late or refused."""
    if page.viewport_size["width"] < 500:
        pytest.skip("once is enough")
    page.click("#load")
    page.wait_for_selector("#load:disabled")
    page.wait_for_selector("#load:not([disabled])", timeout=60_000)
    said = page.inner_text("#loaded")
    found = re.search(r"(\d+) requests sent, (\d+) answered, (\d+) late, (\d+) refused", said)
    sent, answered, _, refused = map(int, found.groups())
    assert sent > 20 and answered + refused == sent
    heights = page.eval_on_selector_all(
        "#fall circle", "all => all.map(one => one.getAttribute('cy'))"
    )
    assert len(set(heights)) > 1  # several budgets
