"""Users of a cluster with access control: who signs in, what they may do, how sessions end."""

from __future__ import annotations

import json

from strata_runtime.version import VERSION
from tests.integration.cli.conftest import Node
from tests.integration.console.conftest import Browser, console_for

NODE = ("--access-control", "on")


def admin_of(node: Node) -> dict[str, str]:
    """The keys of the first admin."""
    keys: dict[str, str] = json.loads((node.data_dir / "first-admin.json").read_text())
    return keys


async def signed_in(browser: Browser, node: Node) -> None:
    """Sign in as the first admin."""
    keys = admin_of(node)
    answer = await browser.sign_in(keys["access_key"], keys["secret_key"])
    assert answer.status_code == 200, answer.text


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(node: Node) -> None:
    """HttpOnly and SameSite=Strict; Secure behind TLS; it holds no key."""
    keys = admin_of(node)
    async with console_for(node.endpoint, behind_tls=True) as browser:
        assert await browser.session() == {"signed_in": False, "version": VERSION}
        answer = await browser.sign_in(keys["access_key"], keys["secret_key"])
        cookie = answer.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "secure", "path=/"))
        assert keys["secret_key"] not in answer.text + answer.headers["set-cookie"]


async def test_wrong_keys_are_refused_and_then_not_even_tried(node: Node) -> None:
    """After some failures of an address its next try is refused, right or wrong."""
    async with console_for(node.endpoint, sign_in_failures=3) as browser:
        for _ in range(3):
            assert (await browser.sign_in("admin", "wrong")).status_code == 401
        keys = admin_of(node)
        answer = await browser.sign_in(keys["access_key"], keys["secret_key"])
        assert (answer.status_code, "too many" in answer.text) == (429, True)
        text = browser.metrics.render().decode()
        assert 'strata_console_sign_ins_total{outcome="refused"} 3.0' in text
        assert 'strata_console_sign_ins_total{outcome="limited"} 1.0' in text


async def test_a_sign_in_from_another_site_is_refused(node: Node) -> None:
    """Nobody is signed in as somebody else."""
    async with console_for(node.endpoint) as browser:
        browser.http.headers["origin"] = "http://evil.invalid"
        assert (await browser.sign_in("admin", "x")).status_code == 403
        browser.http.headers.update({"origin": "http://127.0.0.1"})
        form = await browser.http.post("/api/session", data={"access_key": "a"})
        assert form.status_code == 400


async def test_a_user_does_what_its_policies_allow(node: Node) -> None:
    """An admin makes a user; the user sees and does what a policy allows, and no more."""
    async with console_for(node.endpoint) as admin, console_for(node.endpoint) as shop:
        await signed_in(admin, node)
        await admin.act("topic-create", {"name": "orders"})
        await admin.act("topic-create", {"name": "secrets"})
        made = await admin.act("user-create", {"name": "shop"})
        policy = {"user": "shop", "resource": "topic:orders", "actions": "get,list,pub"}
        await admin.act("policy-create", policy)
        assert (await shop.sign_in("shop", made["secret_key"])).status_code == 200
        assert [row["name"] for row in (await shop.read("topics"))["rows"]] == ["orders"]
        assert (await shop.read("topic", name="orders"))["name"] == "orders"
        refused = await shop.http.get("/api/read/topic", params={"name": "secrets"})
        assert refused.status_code in (403, 404)
        act = await shop.post("/api/acts/topic-delete", values={"name": "orders"})
        assert (act.status_code, act.json()["code"]) == (403, "refused")
        assert (await shop.http.get("/api/read/users")).status_code == 403
        users = (await admin.read("users"))["users"]
        assert "secret" not in json.dumps(users)
        test = {"user": "shop", "resource": "topic:orders", "action": "pub"}
        assert (await admin.act("policy-test", test))["allowed"] is True


async def test_sign_out_ends_the_session_for_good(node: Node) -> None:
    """The cookie of an ended session opens nothing."""
    async with console_for(node.endpoint) as browser:
        await signed_in(browser, node)
        cookies = dict(browser.http.cookies)
        session = await browser.session()
        headers = {"x-strata-csrf": session["csrf"]}
        assert (await browser.http.delete("/api/session")).status_code == 403
        browser.http.cookies.update(cookies)
        assert (await browser.http.delete("/api/session", headers=headers)).status_code == 200
        browser.http.cookies.update(cookies)
        assert (await browser.http.get("/api/read/overview")).status_code == 401
