"""The `strata` command: the tree of commands, errors as one line, exit codes.

A command's module is loaded only when it is called, so that `strata topic list` pays neither for
RocksDB nor for the broker. Exit codes: 0 done, 1 failed, 2 to 5 by kind (errors.EXIT_STATUS), 130
interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from strata_cli.errors import EXIT_STATUS, CliError, UsageError, error_of_value
from strata_cli.readable import printable
from strata_runtime.ending import end_process
from strata_runtime.errors import StrataError, one_line
from strata_runtime.garbage import collect_seldom
from strata_runtime.version import VERSION

_RUN = Group("Run", sort_key=0)
_USE = Group("Topics and messages", sort_key=1)
_CLUSTER = Group("The cluster", sort_key=2)
_ACCESS = Group("Access", sort_key=3)
_FILES = Group("Files, with no server", sort_key=4)
_TOOLS = Group("Tools", sort_key=5)

app = App(
    name="strata",
    help="StrataMQ: run and operate it.",
    version=VERSION,
    help_format="plaintext",
    # `run` gives Ctrl-C its exit code.
    suppress_keyboard_interrupt=False,
)
app.command(
    "strata_cli.commands.run:standalone",
    name="standalone",
    help="A whole node in one process.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.run:nameserver",
    name="nameserver",
    help="A nameserver of a cluster.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.storage:app",
    name="storage",
    help="A storage node of a cluster.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.run:broker", name="broker", help="A broker of a cluster.", group=_RUN
)
app.command(
    "strata_cli.commands.container:app",
    name="container",
    help="Brokers and storage nodes in one process.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.run:forwarder",
    name="forwarder",
    help="One address in front of several brokers.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.autoscaler:autoscaler",
    name="autoscaler",
    help="Metrics of a cluster for KEDA.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.local:app", name="local", help="A cluster on this machine.", group=_RUN
)
app.command(
    "strata_console.command:console",
    name="console",
    help="The web console of a cluster.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.run:demo",
    name="demo",
    help="Demonstration: send messages through a node.",
    group=_RUN,
)
app.command(
    "strata_cli.commands.status:status",
    name="status",
    help="The cluster on one screen, with the next command for each problem.",
    group=_CLUSTER,
)
app.command(
    "strata_cli.commands.cluster:cluster", name="cluster", help="The whole cluster.", group=_CLUSTER
)
app.command(
    "strata_cli.commands.probe:probe",
    name="probe",
    help="Whether a process of this machine is ready.",
    group=_RUN,
)
app.command("strata_cli.commands.node:app", name="node", help="Nodes.", group=_CLUSTER)
app.command(
    "strata_cli.commands.cluster:raft_group", name="raft-group", help="Raft groups.", group=_CLUSTER
)
app.command("strata_cli.commands.cluster:replica", name="replica", help="Replicas.", group=_CLUSTER)
app.command("strata_cli.commands.cluster:leader", name="leader", help="Leaders.", group=_CLUSTER)
app.command("strata_cli.commands.queue:app", name="queue", help="Queues of topics.", group=_CLUSTER)
app.command("strata_cli.commands.slot:app", name="slot", help="Slots.", group=_CLUSTER)
app.command("strata_cli.commands.config:app", name="config", help="Configuration.", group=_CLUSTER)
app.command("strata_cli.commands.topic:app", name="topic", help="Topics.", group=_USE)
app.command("strata_cli.commands.group:app", name="group", help="Consumer groups.", group=_USE)
app.command(
    "strata_cli.commands.client:app",
    name="client",
    help="Producers and consumers that are connected.",
    group=_USE,
)
app.command("strata_cli.commands.message:app", name="message", help="Messages.", group=_USE)
app.command("strata_cli.commands.dlq:app", name="dlq", help="Dead letters.", group=_USE)
app.command(
    "strata_cli.commands.transaction:app", name="transaction", help="Transactions.", group=_USE
)
app.command(
    "strata_cli.commands.apply:apply",
    name="apply",
    help="Topics and consumer groups as a file says.",
    group=_USE,
)
app.command(
    "strata_cli.commands.apply:export",
    name="export",
    help="Topics and consumer groups as a file.",
    group=_USE,
)
app.command(
    "strata_cli.commands.migrate:app",
    name="migrate",
    help="Copies a RocketMQ cluster into StrataMQ.",
    group=_USE,
)
app.command(
    "strata_cli.commands.quota:app",
    name="quota",
    help="Limits of namespaces and topics.",
    group=_USE,
)
app.command("strata_cli.commands.user:app", name="user", help="Users and keys.", group=_ACCESS)
app.command(
    "strata_cli.commands.policy:app",
    name="policy",
    help="Policies: rights of users.",
    group=_ACCESS,
)
app.command(
    "strata_cli.commands.tier_cluster:app", name="tier", help="Tiered storage.", group=_CLUSTER
)
app.command(
    "strata_cli.commands.kv:app", name="kv", help="Key-value tables (plugin kv).", group=_USE
)
app.command(
    "strata_cli.commands.placement:app", name="placement", help="Plans of moves.", group=_CLUSTER
)
app.command(
    "strata_cli.commands.cert:app",
    name="cert",
    help="Certificates of a cluster; needs no server.",
    group=_FILES,
)
app.command(
    "strata_cli.commands.log:app",
    name="log",
    help="CommitLogs on disk; needs no server.",
    group=_FILES,
)
app.command(
    "strata_cli.commands.doctor:doctor",
    name="doctor",
    help="Checks of this machine: clock, disk, limits, ports, certificates.",
    group=_TOOLS,
)
app.command(
    "strata_cli.commands.bench:app",
    name="bench",
    help="A small load, and how quick it was.",
    group=_TOOLS,
)
app.command(
    "strata_cli.commands.debug:app",
    name="debug",
    help="A file that helps to look into a problem.",
    group=_TOOLS,
)
app.command(
    "strata_cli.commands.profile:app",
    name="profile",
    help="Connections under a name.",
    group=_TOOLS,
)
app.command(
    "strata_cli.commands.completion:app",
    name="completion",
    help="Completion in the shell.",
    group=_TOOLS,
)


def main() -> None:
    """Run the command line of this process."""
    collect_seldom()
    # Otherwise gRPC's messages on failed handshakes and calls appear among our own lines, as
    # often as a client likes.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    end_process(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        return _run(arguments)
    except CycloptsError as error:
        failure: StrataError = UsageError(f"{one_line_of(error)} (see strata --help)")
    except StrataError as error:
        failure = error
    except UnicodeEncodeError as error:
        failure = UsageError(f"{error.object!r} is not UTF-8 text")
    except BrokenPipeError:
        # The reader of our output has closed it; the interpreter must not flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        failure = CliError(one_line(error))
    except Exception as error:
        # The boundary of the process: every failure ends as one line.
        if os.environ.get("STRATA_TRACEBACK"):
            raise
        failure = _unexpected(error)
    return _fail(failure, as_json=_wants_json(arguments))


def _unexpected(error: Exception) -> CliError:
    """Return the error of a command that did not expect it."""
    unfit = error_of_value(error) if isinstance(error, ValueError) else None
    if unfit is not None:
        return unfit
    more = "(a mistake in strata; STRATA_TRACEBACK=1 tells where)"
    return CliError(f"{one_line(error)} {more}")


def _run(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    result = app(
        list(arguments),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    sys.stdout.flush()
    # A command that checks something returns its exit code.
    return result if isinstance(result, int) else 0


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are for a program; also when the command line could not be read."""
    text = " ".join(arguments)
    return re.search(r"(^| )(-o|--output)[ =]?(json|yaml)( |$)", text) is not None


def one_line_of(error: CycloptsError) -> str:
    """Return what is wrong with a command line, without line breaks."""
    text = " ".join(str(error).split())
    return re.sub(r"^Unused Tokens: \[(.*)\]\.$", r"unexpected argument \1", text)


def _fail(failure: StrataError, *, as_json: bool) -> int:
    """Print an error on standard error; return its exit code."""
    code = failure.code if isinstance(failure, CliError) else "failed"
    reason, status = one_line(failure), EXIT_STATUS[code]
    if as_json:
        print(json.dumps({"error": reason, "code": code, "exit_code": status}), file=sys.stderr)
    else:
        print(f"strata: {printable(reason)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
