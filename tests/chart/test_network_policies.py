"""NetworkPolicies of the chart as a table: who reaches which port of which pods."""

from __future__ import annotations

import helm_python
import pytest
import yaml

from tests.chart import reach
from tests.chart.reach import NAMESPACE, STRANGERS, TABLES, VALUES, Object, Peer
from tests.chart.test_chart import CHART, objects
from tests.chart.test_chart import chart as chart


def values(table: str) -> Object:
    """Return the values of a table: an example's, or those beside the tables."""
    if table in VALUES:
        return VALUES[table]
    found: Object = yaml.safe_load((CHART / "examples" / table).read_text())
    return found


def policies(items: list[Object]) -> list[Object]:
    return [item for item in items if item["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("table", TABLES)
def test_each_port_is_open_to_those_who_need_it(chart: helm_python.Chart, table: str) -> None:
    """Each cell of the table: clients, browsers, Prometheus and KEDA; nobody else but ourselves."""
    items = objects(chart, values(table))
    ours = reach.pods(items)
    ports = reach.ports(items)
    targets = {pod.name: pod for pod in ours}
    found = {
        (peer.name, component, name): reach.reaches(policies(items), peer, targets[component], port)
        for (component, name), port in ports.items()
        for peer in (*ours, *STRANGERS)
    }
    assert found == reach.expected(table, ours)


@pytest.mark.parametrize("table", TABLES)
def test_the_table_has_each_port_that_a_pod_opens(chart: helm_python.Chart, table: str) -> None:
    """A new port is a new row, so that somebody decides who reaches it."""
    assert set(reach.ports(objects(chart, values(table)))) == set(TABLES[table])


@pytest.mark.parametrize("table", TABLES)
def test_a_policy_belongs_to_pods_and_ports_that_exist(
    chart: helm_python.Chart, table: str
) -> None:
    """No policy selects nothing, and none names a port that its pods do not open."""
    items = objects(chart, values(table))
    ours, ports = reach.pods(items), reach.ports(items)
    for policy in policies(items):
        spec = policy["spec"]
        [pod] = [
            pod for pod in ours if spec["podSelector"]["matchLabels"].items() <= pod.labels.items()
        ]
        opened = {port for (component, _), port in ports.items() if component == pod.name}
        named = {each["port"] for rule in spec["ingress"] for each in rule.get("ports", ())}
        assert named <= opened, policy["metadata"]["name"]


def test_without_policies_everybody_reaches_everything(chart: helm_python.Chart) -> None:
    """The default: a cluster without an enforcer looks the same as one with it."""
    items = objects(chart)
    assert policies(items) == []
    broker = next(pod for pod in reach.pods(items) if pod.name == "broker")
    assert all(reach.reaches([], peer, broker, 8083) for peer in STRANGERS)


def test_operators_may_be_let_in(chart: helm_python.Chart) -> None:
    """To the operators' port, and to no other."""
    person = Peer("person", "desk", {"who": "operator"})
    listed = [{"namespaceSelector": {}, "podSelector": {"matchLabels": person.labels}}]
    items = objects(chart, {"networkPolicy": {"enabled": True, "operators": listed}})
    targets = {pod.name: pod for pod in reach.pods(items)}
    reached = {
        name
        for name, port in reach.ports(items).items()
        if reach.reaches(policies(items), person, targets[name[0]], port)
    }
    assert reached == {("broker", "grpc"), ("broker", "operators")}


def test_the_reader_knows_what_a_policy_may_say() -> None:
    """A range of ports, an exception of a network, and words that it does not know."""
    policy: Object = {
        "spec": {
            "policyTypes": ["Ingress"],
            "podSelector": {},
            "ingress": [
                {
                    "ports": [{"port": 10, "endPort": 20}],
                    "from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.8/32"]}}],
                }
            ],
        }
    }
    target = Peer("target", NAMESPACE)

    def passes(address: str, port: int) -> bool:
        return reach.reaches([policy], Peer("one", address=address), target, port)

    assert [passes("192.0.2.7", port) for port in (9, 10, 20, 21)] == [False, True, True, False]
    assert not passes("192.0.2.8", 15)
    assert not reach.reaches([policy], Peer("pod", NAMESPACE), target, 15)
    policy["spec"]["ingress"][0]["from"] = [{"podSelector": {"matchExpressions": []}}]
    with pytest.raises(ValueError, match="matchExpressions"):
        reach.reaches([policy], Peer("pod", NAMESPACE), target, 15)
