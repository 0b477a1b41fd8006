"""The scripts that the chart runs in pods: what they make, wait for and refuse."""

from __future__ import annotations

import base64
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "charts" / "strata" / "files" / "scripts"
SECRETS = "/api/v1/namespaces/messaging/secrets"

Object = dict[str, Any]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts can be imported; nothing of them stays."""
    names = [path.stem for path in SCRIPTS.glob("*.py")]
    monkeypatch.syspath_prepend(SCRIPTS)
    before = {name: sys.modules.pop(name, None) for name in names}
    yield
    for name in names:
        sys.modules.pop(name, None)
        if (module := before[name]) is not None:
            sys.modules[name] = module


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


class Api(ThreadingHTTPServer):
    """As much of the API server as the scripts call: objects by their path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Object] = {}
        self.health = b"ok\n"
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        if self.path == "/health":
            self.server.asked += 1
            self._answer(200, self.server.health)
        elif (found := self.server.objects.get(self.path)) is not None:
            self._answer(200, json.dumps(found).encode())
        else:
            self._answer(404, b"{}")

    def do_POST(self) -> None:
        made = self._body()
        self.server.objects[f"{self.path}/{made['metadata']['name']}"] = made
        self._answer(201, json.dumps(made).encode())

    def do_PATCH(self) -> None:
        found = self.server.objects[self.path]
        for key, value in self._body().items():
            found[key] = {**found.get(key, {}), **value}
        self._answer(200, json.dumps(found).encode())

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path)
        self._answer(200, b"{}")

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def _body(self) -> Object:
        found: Object = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("token\n")
    with Api() as server:
        monkeypatch.setenv("CHART_API_SERVER", server.url)
        monkeypatch.setenv("CHART_ACCOUNT", str(account))
        monkeypatch.setenv("CHART_NAMESPACE", "messaging")
        monkeypatch.setenv("CHART_LABELS", "{}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def secret(api: Api, name: str) -> dict[str, bytes]:
    data = api.objects[f"{SECRETS}/{name}"]["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def test_setup_makes_what_is_missing_and_keeps_the_rest(
    scripts: None, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys, authority and certificates are made once; other hosts get a new certificate."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    wanted = {"secret": "storage-tls", "role": "storage", "hosts": ["*.storage.ns.svc"]}
    plan = {"admin": "admin", "authority": "ca", "days": 30, "certificates": [wanted]}
    monkeypatch.setenv("CHART_PLAN", json.dumps(plan))
    setup = script("setup")
    setup.main()
    first = {name: secret(api, name) for name in ("admin", "ca", "storage-tls")}
    assert set(first["admin"]) == {"access_key", "secret_key"}
    assert set(first["storage-tls"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert first["storage-tls"]["ca.crt"] == first["ca"]["ca.crt"]

    setup.main()
    assert {name: secret(api, name) for name in first} == first

    wanted["hosts"] = ["*.other.ns.svc"]
    monkeypatch.setenv("CHART_PLAN", json.dumps(plan))
    setup.main()
    assert secret(api, "ca") == first["ca"]
    assert secret(api, "storage-tls")["tls.crt"] != first["storage-tls"]["tls.crt"]
    assert secret(api, "storage-tls")["ca.crt"] == first["ca"]["ca.crt"]


def test_authorities_of_others_stay_accepted(scripts: None) -> None:
    """Each authority is in the file once, also when the file ends without a line break."""
    one = b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
    two = b"-----BEGIN CERTIFICATE-----\nBB\n-----END CERTIFICATE-----"
    assert script("setup").joined(one, two + b"\n" + one) == one + two + b"\n"


def test_a_pod_stops_when_the_cluster_is_healthy(scripts: None, api: Api) -> None:
    """A drained node is no reason to wait; any other problem is one."""
    gate = script("gate")
    endpoint = api.url.partition("//")[2]
    api.health = b"ok\nnode storage-1 DRAINING: an operator is taking it out\n"
    assert gate.problems_at(endpoint) == []
    api.health = b"ok\nraft group 1 DEGRADED: 2 of 3 replicas\n"
    assert gate.problems_at(endpoint) == ["raft group 1 DEGRADED: 2 of 3 replicas"]
    assert gate.problems_at("127.0.0.1:1") is None


def test_the_keys_of_the_first_admin_are_for_one_user_only(scripts: None, tmp_path: Path) -> None:
    """The secret's files become the JSON that the server reads, mode 0600."""
    (tmp_path / "access_key").write_text("root\n")
    (tmp_path / "secret_key").write_text("s3cret\n")
    file = tmp_path / "first-admin.json"
    file.write_text("old")
    script("start").write_admin(tmp_path, file)
    assert json.loads(file.read_text()) == {"access_key": "root", "secret_key": "s3cret"}
    assert file.stat().st_mode & 0o777 == 0o600


class FakeStrata:
    """The command's answers, from a cluster of three storage nodes and one raft group."""

    def __init__(self, replicas: int, drains: bool = True) -> None:
        self.replicas = replicas
        self.drains = drains
        self.called: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str) -> Any:
        self.called.append(arguments)
        match arguments:
            case ("node", "list"):
                return {
                    "nodes": [
                        {"node": f"s{number}", "endpoints": [f"demo-storage-{number}.x:1"]}
                        for number in range(5)
                    ]
                }
            case ("raft-group", "list"):
                return {"raft_groups": [{"raft_group": 1}]}
            case ("raft-group", "show", _):
                return {"replicas": [{"role": "voter"}] * self.replicas}
            case ("node", "show", _):
                return {"replicas": [] if self.drains else [{"role": "voter"}]}
        return {}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Object:
    found = {
        "namespace": "messaging",
        "replicas": {"demo-storage": 3, "demo-nameserver": 3},
        "sizes": {},
        "storage": "demo-storage",
        "nameserver": "demo-nameserver",
        "operators": "demo-operators",
        "is_gated": True,
        "wait_s": 0,
        "drain_s": 0,
    }
    monkeypatch.setenv("CHART_SETTINGS", json.dumps(found))
    return found


def test_nodes_that_go_are_drained(
    scripts: None, settings: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with the highest ordinals, and no others."""
    prepare, strata = script("prepare"), FakeStrata(replicas=3)
    monkeypatch.setattr(script("cluster"), "strata", strata)
    prepare.drain(script("cluster").settings(), 5, 3)
    drained = [call[2:] for call in strata.called if call[:2] == ("node", "drain")]
    assert drained == [("s3",), ("s4",)]


def test_a_drain_that_does_not_end_is_undone(
    scripts: None, settings: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade is refused and both nodes are in service again."""
    strata = FakeStrata(replicas=3, drains=False)
    monkeypatch.setattr(script("cluster"), "strata", strata)
    monkeypatch.setattr(script("cluster"), "PAUSE_S", 0.0)
    with pytest.raises(SystemExit):
        script("prepare").drain(script("cluster").settings(), 5, 3)
    assert strata.called[-2:] == [
        ("node", "drain", "s3", "--undo"),
        ("node", "drain", "s4", "--undo"),
    ]


def test_fewer_nodes_than_replicas_are_refused(
    scripts: None, settings: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drained then."""
    strata = FakeStrata(replicas=3)
    monkeypatch.setattr(script("cluster"), "strata", strata)
    with pytest.raises(SystemExit):
        script("prepare").drain(script("cluster").settings(), 3, 2)
    assert ("node", "drain") not in [call[:2] for call in strata.called]


def test_a_drain_that_is_refused_is_undone(
    scripts: None, settings: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second node cannot be drained: neither is, and the upgrade ends with the reason."""
    strata = FakeStrata(replicas=3)

    def refusing(*arguments: str) -> Any:
        if arguments == ("node", "drain", "s4"):
            raise RuntimeError("strata node drain s4: too few nodes would be left")
        return strata(*arguments)

    monkeypatch.setattr(script("cluster"), "strata", refusing)
    with pytest.raises(SystemExit):
        script("prepare").drain(script("cluster").settings(), 5, 3)
    assert ("node", "drain", "s3", "--undo") in strata.called


CLAIMS = "/api/v1/namespaces/messaging/persistentvolumeclaims"
SETS = "/apis/apps/v1/namespaces/messaging/statefulsets"


def _install(api: Api, size: str, **replicas: int) -> None:
    """Add StatefulSets with their claims, and the operators' service."""
    template: Object = {"spec": {"resources": {"requests": {"storage": size}}}}
    items: list[Object] = []
    for name, count in replicas.items():
        api.objects[f"{SETS}/demo-{name}"] = {
            "spec": {"replicas": count, "volumeClaimTemplates": [template]}
        }
        items += [
            {"metadata": {"name": f"data-demo-{name}-{ordinal}"}, **template}
            for ordinal in range(count)
        ]
    api.objects[CLAIMS] = {"items": items}
    api.objects |= {f"{CLAIMS}/{each['metadata']['name']}": each for each in items}
    api.objects["/api/v1/namespaces/messaging/services/demo-operators"] = {}


@pytest.mark.parametrize(
    ("sizes", "drains"),
    [
        ({"demo-storage": "3Gi", "demo-nameserver": "3Gi"}, False),
        ({"demo-storage": "3Gi", "demo-nameserver": "1Gi"}, True),
    ],
    ids=["drain", "shrinks"],
)
def test_what_is_refused_leaves_every_stateful_set(
    scripts: None,
    settings: Object,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    sizes: Object,
    drains: bool,
) -> None:
    """Volumes would grow, but a node does not drain, or other volumes would shrink."""
    _install(api, "2Gi", storage=5, nameserver=3)
    monkeypatch.setenv("CHART_SETTINGS", json.dumps({**settings, "sizes": sizes}))
    monkeypatch.setattr(script("cluster"), "strata", FakeStrata(replicas=3, drains=drains))
    monkeypatch.setattr(script("cluster"), "PAUSE_S", 0.0)
    monkeypatch.setattr(script("cluster"), "is_healthy", lambda wait_s: True)
    before = json.loads(json.dumps(api.objects))
    with pytest.raises(SystemExit):
        script("prepare").main()
    assert api.objects == before


def test_nodes_are_drained_after_an_upgrade_that_left_no_stateful_set(
    scripts: None, settings: Object, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Volumes had grown, and Kubernetes had refused the rest: pods and claims are there."""
    _install(api, "2Gi", storage=5, nameserver=3)
    for name in ("storage", "nameserver"):
        del api.objects[f"{SETS}/demo-{name}"]
    strata = FakeStrata(replicas=3)
    monkeypatch.setattr(script("cluster"), "strata", strata)
    monkeypatch.setattr(script("cluster"), "is_healthy", lambda wait_s: True)
    script("prepare").main()
    drained = [call[2:] for call in strata.called if call[:2] == ("node", "drain")]
    assert drained == [("s3",), ("s4",)]

    settings["replicas"] = {"demo-storage": 5, "demo-nameserver": 5}
    monkeypatch.setenv("CHART_SETTINGS", json.dumps(settings))
    with pytest.raises(SystemExit):
        script("prepare").main()


def test_volumes_grow_and_never_shrink(scripts: None, settings: Object, api: Api) -> None:
    """Claims of the StatefulSet's pods grow, and no other claim; it is deleted without its pods."""
    prepare, cluster = script("prepare"), script("cluster")
    base = "/api/v1/namespaces/messaging/persistentvolumeclaims"
    path = "/apis/apps/v1/namespaces/messaging/statefulsets/demo-storage"
    template: Object = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    claims: list[Object] = [
        {"metadata": {"name": name}, **template}
        for name in ("data-demo-storage-0", "data-demo-storage-other-0", "logs-demo-storage-0")
    ]
    api.objects[path] = {"spec": {"volumeClaimTemplates": [template]}}
    api.objects[base] = {"items": claims}
    api.objects |= {f"{base}/{each['metadata']['name']}": each for each in claims}

    settings["sizes"] = {"demo-storage": "1Gi"}
    with pytest.raises(SystemExit):
        prepare.volumes_that_grow(cluster.Settings(**settings))
    assert path in api.objects

    settings["sizes"] = {"demo-storage": "3Gi"}
    growing = prepare.volumes_that_grow(cluster.Settings(**settings))
    assert growing == {"demo-storage": "3Gi"}
    prepare.grow_volumes(cluster.Settings(**settings), growing)
    assert path not in api.objects
    sizes = [
        api.objects[f"{base}/{each['metadata']['name']}"]["spec"]["resources"]["requests"]
        for each in claims
    ]
    assert [each["storage"] for each in sizes] == ["3Gi", "2Gi", "2Gi"]


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("5", 5),
        ("2K", 2_000),
        ("2k", 2_000),
        ("3Gi", 3 * 1_024**3),
        ("1Ti", 1_024**4),
        ("1E", 10**18),
    ],
)
def test_sizes_are_read(scripts: None, size: str, count: int) -> None:
    assert script("prepare").in_bytes(size) == count
