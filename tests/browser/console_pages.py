"""The console in a real Chromium: pages, forms, keyboard, languages, themes; axe finds nothing.

`make console-test` runs it: Chromium and npm's packages are no part of `make test`.
STRATA_SCREENSHOTS=DIR writes pictures of pages there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.e2e.leftovers import free_disk
from tests.integration.cli.conftest import Node

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "services/console/web/node_modules/axe-core/axe.min.js"
PAGES = (
    *("cluster", "topics", "groups", "messages", "tail", "dead-letters", "delayed"),
    *("transactions", "tier", "tables", "placement", "quotas", "users", "audit", "config"),
)
pytestmark = pytest.mark.timeout(300)
# A busy machine makes a page slow, not wrong.
expect.set_options(timeout=30_000)

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def url_of(node: Node) -> str:
    """Where the console of a node is."""
    fields = dict(part.split("=", 1) for part in node.ready_line.split()[1:])
    return f"http://{fields['console']}/"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with topics, a lagging consumer group and messages."""
    started = Node(tmp_path_factory.mktemp("node") / "data", "--plugins", "kv", environment={})
    for topic in ("orders", "payments", "shipments"):
        started.json("topic", "create", topic, "--queues", "4")
    started.json("group", "create", "billing")
    for number in range(5):
        body = json.dumps({"order": number, "items": ["margherita", "cola"]})
        started.json("message", "send", "orders", "--body", body, "--key", f"order-{number}")
    started.json("message", "receive", "orders", "--group", "billing", "--ack")
    yield started
    code, _, err = started.stop()
    assert code == 0, err
    free_disk(started.data_dir)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser of all tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(node: Node, chromium: Browser) -> Iterator[Page]:
    """A page of the console; a complaint of the browser fails the test."""
    context = chromium.new_context(
        viewport={"width": 1280, "height": 800}, locale="en-GB", color_scheme="light"
    )
    opened = context.new_page()
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    opened.on("console", hear)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(url_of(node))
    expect(opened.get_by_role("heading", level=1)).to_have_text("Cluster")
    yield opened
    context.close()
    assert complaints == []


def show(page: Page, name: str) -> None:
    """Go to a page of the console and wait until it has its content."""
    page.evaluate("hash => { location.hash = hash }", f"#/{name}")
    expect(page.locator("nav a[aria-current=page]")).to_have_attribute(
        "href", f"#/{name.partition('?')[0]}"
    )
    expect(page.locator("main")).not_to_contain_text("Loading ...")


def violations(page: Page) -> list[str]:
    """Return the findings of axe on the page as it is."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run()")
    return [
        f"{each['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def picture(page: Page, name: str) -> None:
    """Write a picture of the page, if they are wanted."""
    if folder := os.environ.get("STRATA_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"console-{name}.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(page: Page, theme: str) -> None:
    """Names, roles, contrast and order are right on every page in both themes."""
    if theme == "dark":
        page.get_by_role("button", name="Dark").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    found = {}
    for name in PAGES:
        show(page, name)
        if wrong := violations(page):
            found[name] = wrong
    assert found == {}
    show(page, "cluster")
    picture(page, f"cluster-{theme}")


def test_a_topic_is_made_in_a_form_that_shows_its_command(page: Page) -> None:
    """The command line follows the inputs; the list has the topic without a reload."""
    show(page, "topics")
    page.get_by_role("button", name="Create a topic").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("input[name=name]").fill("made-here")
    dialog.locator("select[name=type]").select_option("FIFO")
    expect(dialog.locator("code")).to_contain_text("strata topic create made-here --type=FIFO")
    assert violations(page) == []
    dialog.get_by_role("button", name="Create a topic").click()
    expect(dialog.get_by_role("status")).to_contain_text("Done")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("link", name="made-here")).to_be_visible()
    page.get_by_role("link", name="made-here").click()
    page.get_by_role("button", name="Delete the topic").click()
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("This would happen")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_message_is_shown_as_text_json_and_bytes_with_its_trace(page: Page) -> None:
    """The newest come first; a message opens with its body in three forms and a timeline."""
    show(page, "messages?topic=orders&key=order-3")
    page.locator("td button.link").first.click()
    expect(page.locator("pre")).to_contain_text('"margherita"')
    page.get_by_role("button", name="Hex").click()
    expect(page.locator("pre")).to_contain_text("00000000  7b 22 6f 72")
    page.get_by_role("button", name="JSON").click()
    expect(page.locator(".timeline li")).not_to_have_count(0)
    expect(page.locator(".timeline")).to_contain_text("stored")
    assert violations(page) == []
    picture(page, "message")


def test_a_consumer_group_shows_its_lag_and_its_age(page: Page) -> None:
    """Four of five messages wait."""
    show(page, "groups")
    page.get_by_role("link", name="billing").click()
    facts = page.locator("main .facts").first
    expect(facts).to_contain_text("Lag")
    expect(facts.locator("dd").first).to_have_text("4")
    expect(page.get_by_role("region", name="Lag per queue")).to_contain_text("orders")


def test_a_live_tail_shows_messages_as_they_come(node: Node, page: Page) -> None:
    """A message that somebody else sends appears by itself."""
    show(page, "tail?topic=payments")
    expect(page.get_by_role("status")).to_contain_text("Following payments")
    for number in range(100):
        node.json("message", "send", "payments", "--body", f"paid {number}")
        if page.get_by_text(re.compile("paid [0-9]+")).count():
            break
    expect(page.get_by_text(re.compile("paid [0-9]+")).first).to_be_visible()


def test_messages_are_text_and_never_markup(node: Node, page: Page) -> None:
    """A body and a property with markup are shown as they are."""
    node.json(
        *("message", "send", "shipments", "--body", EVIL, "--tag", "evil"),
        *("--property", f"a={EVIL}"),
    )
    show(page, "messages?topic=shipments")
    page.locator("td button.link").first.click()
    expect(page.locator("pre")).to_contain_text("<img src=x onerror=")
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.title() != "owned"


def test_the_keyboard_goes_everywhere(page: Page) -> None:
    """Letters open pages, / the search, j and k go along rows, ? shows the keys."""
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("pay")
    expect(page.get_by_role("link", name="orders")).to_be_hidden()
    page.keyboard.press("Tab")
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="payments")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=2)).to_have_text("payments")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Go to the search")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_page_speaks_chinese(page: Page) -> None:
    """One button changes all texts, and the page remembers it."""
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("集群")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("集群")
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")


def test_a_user_signs_in_and_out(tmp_path: Path, chromium: Browser) -> None:
    """With access control the first page asks for keys; wrong ones are refused in words."""
    node = Node(tmp_path / "data", "--access-control", "on", environment={})
    context = chromium.new_context(locale="en-GB")
    try:
        page = context.new_page()
        page.goto(url_of(node))
        keys = json.loads((node.data_dir / "first-admin.json").read_text())
        page.get_by_label("Access key").fill(keys["access_key"])
        page.get_by_label("Secret key").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("signature")
        assert violations(page) == []
        page.get_by_label("Secret key").fill(keys["secret_key"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
        assert page.evaluate("() => document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Access key")).to_be_visible()
    finally:
        context.close()
        code, _, _ = node.stop()
    assert code == 0
