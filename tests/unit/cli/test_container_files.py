"""Files of containers and members: both forms, what has no effect, and changes of keys."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from strata_cli.container import file_edits, properties
from strata_cli.container.broker_container import check_together
from strata_cli.container.config import ContainerConfig, MemberConfig
from strata_cli.container.control import edited_text
from strata_cli.container.files import read_container, read_member
from strata_runtime.errors import ConfigError

BROKER = """
[member]
name = "broker-a"
cluster = "Shop"
id = 2
data_dir = "a"
isolate_log = true

[node]
grpc_port = 18081
"""
STORAGE = """
memberRole=storage
brokerName=store-a
brokerClusterName=Shop
listenPort=20920
storePathRootDir=/data/store-a
fileReservedTime=48
quotaPercentForDiskPartition=0.25
logicalDiskSpaceCleanForciblyThreshold=0.7
diskSpaceCleanForciblyRatio=85
diskSpaceWarningLevelRatio=0.9
storage.max_waiters=77
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def container(tmp_path: Path) -> ContainerConfig:
    text = '[cluster]\nnameservers = "10.0.0.1:9877"\nmachine = "m1"\n[node]\ndrain_ms = 777\n'
    return read_container(written(tmp_path, "container.toml", text), {})[0]


def test_a_container_of_toml_and_one_of_properties_are_the_same(tmp_path: Path) -> None:
    """RIP-31's names mean keys of ours; members are files separated by colons."""
    toml = """
    [cluster]
    nameservers = ["a:1", "b:2"]
    machine = "m"
    [node]
    admin_port = 10911
    advertised_host = "10.0.0.7"
    [container]
    members = ["x.conf", "/etc/y.toml"]
    """
    text = (
        "# RIP-31\nbrokerConfigPaths=x.conf:/etc/y.toml\nlistenPort=10911\nnamesrvAddr=a:1;b:2\n"
        "brokerContainerIP=10.0.0.7\ncluster.machine=m\nserverWorkerThreads=8\n"
    )
    ours, none = read_container(written(tmp_path, "c.toml", toml), {})
    theirs, unknown = read_container(written(tmp_path, "c.properties", text), {})

    assert theirs == ours
    assert none == []
    assert unknown == ["serverWorkerThreads"]
    assert ours.container.members == (Path("x.conf"), Path("/etc/y.toml"))
    assert ours.cluster.nameservers == ("a:1", "b:2")
    assert ours.node.admin_port == 10911


def test_no_member_is_a_container_alone(tmp_path: Path) -> None:
    """An empty brokerConfigPaths is no member; the machine's name is the same at each start."""
    path = written(tmp_path, "c.properties", "brokerConfigPaths=\n")
    first, again = read_container(path, {})[0], read_container(path, {})[0]

    assert first.container.members == ()
    assert first.cluster.machine == again.cluster.machine
    assert first.cluster.machine.startswith("container-")


@pytest.mark.parametrize("name", ["c.properties", "c.toml"])
def test_the_environment_names_nameservers(name: str, tmp_path: Path) -> None:
    """NAMESRV_ADDR counts where the file names none, and only there."""
    environment = {"NAMESRV_ADDR": "e:1;f:2"}
    path = written(tmp_path, name, "")
    assert read_container(path, environment)[0].cluster.nameservers == ("e:1", "f:2")

    line = '[cluster]\nnameservers = ["a:1"]\n' if name == "c.toml" else "namesrvAddr=a:1\n"
    path = written(tmp_path, name, line)
    assert read_container(path, environment)[0].cluster.nameservers == ("a:1",)


def test_an_address_server_without_address(tmp_path: Path) -> None:
    """The error says which key is missing."""
    path = written(tmp_path, "c.properties", "fetchNamesrvAddrByAddressServer=true\n")
    with pytest.raises(ConfigError, match=r"container\.address_server_url is ''"):
        read_container(path, {})


def test_a_member_has_what_the_container_gives_it(
    tmp_path: Path, container: ContainerConfig
) -> None:
    """Its own keys count over the container's; its ports are never those of the container."""
    member = read_member(written(tmp_path, "a.toml", BROKER), container)

    assert member.name == "Shop_broker-a_2"
    assert member.ignored == ()
    assert member.config.member.data_dir == (tmp_path / "a").resolve()
    assert member.config.node.grpc_port == 18081
    assert member.config.node.drain_ms == 777
    assert member.config.node.admin_port == 0
    assert member.config.cluster.nameservers == ("10.0.0.1:9877",)
    assert member.config.cluster.machine == "m1"


def test_a_members_properties(tmp_path: Path, container: ContainerConfig) -> None:
    """RocketMQ's names of a broker's file, its percents and hours too."""
    member = read_member(written(tmp_path, "s.properties", STORAGE), container)
    storage = member.config.storage

    assert member.name == "Shop_store-a_0"
    assert member.config.member.role == "storage"
    assert member.config.node.storage_port == 20920
    assert storage.default_retention_ms == 48 * 3_600_000
    assert (storage.disk_quota_ratio, storage.logical_disk_clean_ratio) == (0.25, 0.7)
    assert (storage.disk_clean_ratio, storage.disk_warning_ratio) == (0.85, 0.9)
    assert storage.max_waiters == 77


def test_settings_of_the_network_are_the_containers(
    tmp_path: Path, container: ContainerConfig
) -> None:
    """A member's file with other nameservers or limits of the network starts without them."""
    text = BROKER + (
        'log_level = "debug"\n[cluster]\nnameservers = ["evil:1"]\n'
        "[angelia]\nmax_audited_refusals_per_s = 3\n"
    )
    member = read_member(written(tmp_path, "a.toml", text), container)
    old = read_member(
        written(tmp_path, "b.conf", "brokerName=b\nstorePathRootDir=b\nnamesrvAddr=evil:1\nx=1\n"),
        container,
    )

    assert member.ignored == (
        "node.log_level",
        "cluster.nameservers",
        "angelia.max_audited_refusals_per_s",
    )
    assert member.config.angelia == container.angelia
    assert old.ignored == ("x", "cluster.nameservers")
    for each in (member, old):
        assert each.config.cluster == container.cluster


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[member]\ndata_dir = "a"\n', "member.name is missing"),
        ('[member]\nname = "a"\n', "member.data_dir is missing"),
        ('[member]\nname = "a_b"\ndata_dir = "a"\n', "member.name: String should match"),
        ('[member]\nname = "a"\ndata_dir = "a"\nrole = "x"\n', "member.role"),
        ("[member]\nnmae = 1\n", "member.nmae: unknown key"),
        ("[storage]\ndisk_quota_ratio = 0\n", "disk_quota_ratio: Input should be greater than 0"),
        ("[storage]\ndisk_quota_ratio = 1.5\n", "disk_quota_ratio: Input should be less than"),
    ],
)
def test_what_is_wrong_with_a_members_file(
    text: str, reason: str, tmp_path: Path, container: ContainerConfig
) -> None:
    """One line names the file, the key and what is wrong."""
    path = written(tmp_path, "a.toml", text)
    with pytest.raises(ConfigError) as error:
        read_member(path, container)
    assert str(error.value).startswith(f"{path}: ")
    assert reason in str(error.value)


def test_members_share_neither_name_nor_folder(tmp_path: Path, container: ContainerConfig) -> None:
    """The error names both files."""
    one = read_member(written(tmp_path, "one.toml", BROKER), container)
    two = read_member(written(tmp_path, "two.toml", BROKER), container)
    other = read_member(
        written(tmp_path, "three.toml", BROKER.replace("broker-a", "broker-b")), container
    )

    with pytest.raises(ConfigError, match=r"two.toml: the member Shop_broker-a_2 is in .*one.toml"):
        check_together([one, two])
    with pytest.raises(ConfigError, match=r"three.toml: the data folder .*/a is that of .*one"):
        check_together([one, other])


def test_a_change_leaves_the_rest_of_a_file_as_it_is() -> None:
    """Comments, order and other keys stay; a list over several lines is one value."""
    text = '# mine\n[container] # x\nmembers = [\n  "a", # one\n]\n\n[node]\nhost = "h" # y\n'
    edited = file_edits.with_toml_key(text, "container", "members", ["b", "c"])
    assert edited == '# mine\n[container] # x\nmembers = ["b", "c"]\n\n[node]\nhost = "h" # y\n'
    assert tomllib.loads(file_edits.with_toml_key(edited, "edge", "tls", False))["edge"] == {
        "tls": False
    }
    assert file_edits.with_toml_key("", "node", "grpc_port", 1) == "[node]\ngrpc_port = 1\n"
    assert file_edits.with_property("# b=0\na=1\nb=2\na=3\n", "a", "9") == "# b=0\na=9\nb=2\n"
    assert file_edits.with_property("a=1\n", "b", "2") == "a=1\nb=2\n"


def test_a_file_in_an_odd_form_is_left_alone() -> None:
    """Dotted keys mean the same but are not found: the change is refused, not made twice."""
    with pytest.raises(ConfigError, match="change it by hand"):
        file_edits.with_toml_key('container.members = ["a"]\n', "container", "members", ["b"])


def test_which_keys_can_be_changed() -> None:
    """Unknown keys and secrets are refused; RIP-31's names only in their own files."""
    toml, old = Path("a.toml"), Path("a.conf")
    assert edited_text(toml, "", "storage.max_waiters", "5", MemberConfig) == (
        "[storage]\nmax_waiters = 5\n"
    )
    assert edited_text(old, "", "listenPort", "5", MemberConfig) == "listenPort=5\n"
    for path, name in ((toml, "listenPort"), (toml, "storage.nothing"), (old, "nothing")):
        with pytest.raises(ConfigError, match="there is no such key"):
            edited_text(path, "", name, "5", MemberConfig)


@pytest.mark.parametrize("name", ["container.boot_hook", "access_control.mode", "node.audit_log"])
def test_what_is_changed_by_hand_only(name: str) -> None:
    """The right to change a container must not become the right to run programs, or unseen."""
    with pytest.raises(ConfigError, match="by hand"):
        edited_text(Path("c.toml"), "", name, "x", ContainerConfig)


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_a_value_is_no_second_setting(end: str) -> None:
    """A line of its own in a value would be a key that is changed by hand only."""
    value = f"4{end}container.boot_hook=/bin/sh"
    for model in (ContainerConfig, MemberConfig):
        for name in ("node.drain_ms", "namesrvAddr"):
            with pytest.raises(ConfigError, match="one line"):
                edited_text(Path("c.properties"), "", name, value, model)
    edited = edited_text(Path("c.toml"), "", "cluster.rack", value, ContainerConfig)
    assert tomllib.loads(edited) == {"cluster": {"rack": value}}


def test_a_value_that_the_file_cannot_hold_is_refused() -> None:
    """One line tells it; the container goes on."""
    for value in ("1979-05-27", "{a = 1}", "[1979-05-27]"):
        with pytest.raises(ConfigError, match="cannot be the value of a key"):
            edited_text(Path("c.toml"), "", "cluster.rack", value, ContainerConfig)


def test_properties_are_read_as_rocketmq_reads_them() -> None:
    """Comments and blanks do not count; of a repeated name the last does."""
    text = "# a=1\n! b=2\n\n c = 3 \nd=4=5\nc=6\n"
    assert properties.parse(text) == {"c": "6", "d": "4=5"}
