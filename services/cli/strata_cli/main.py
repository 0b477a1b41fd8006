"""The `strata` command: the tree of commands, errors as one line, exit codes.

A command's module is loaded only when it is called, so that `strata topic list` pays neither for
RocksDB nor for the broker. Exit codes: 0 done, 1 any error, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from strata_runtime.ending import end_process
from strata_runtime.errors import StrataError, one_line
from strata_runtime.version import VERSION

app = App(
    name="strata",
    help="StrataMQ: run it and look after it.",
    version=VERSION,
    help_format="plaintext",
)
app.command("strata_cli.commands.run:standalone", name="standalone")
app.command("strata_cli.commands.run:nameserver", name="nameserver")
app.command("strata_cli.commands.storage:app", name="storage")
app.command("strata_cli.commands.run:broker", name="broker")
app.command("strata_cli.commands.run:forwarder", name="forwarder")
app.command("strata_cli.commands.local:app", name="local", help="A cluster on this machine.")
app.command("strata_cli.commands.run:demo", name="demo")
app.command("strata_cli.commands.cluster:cluster", name="cluster", help="The whole cluster.")
app.command("strata_cli.commands.node:app", name="node", help="Nodes.")
app.command("strata_cli.commands.cluster:raft_group", name="raft-group", help="Raft groups.")
app.command("strata_cli.commands.cluster:replica", name="replica", help="Replicas.")
app.command("strata_cli.commands.cluster:leader", name="leader", help="Leaders.")
app.command("strata_cli.commands.queue:app", name="queue", help="Queues of topics.")
app.command("strata_cli.commands.slot:app", name="slot", help="Slots.")
app.command("strata_cli.commands.config:app", name="config", help="Configuration.")
app.command("strata_cli.commands.topic:app", name="topic", help="Topics.")
app.command("strata_cli.commands.group:app", name="group", help="Consumer groups.")
app.command("strata_cli.commands.message:app", name="message", help="Messages.")
app.command("strata_cli.commands.dlq:app", name="dlq", help="Dead letters.")
app.command("strata_cli.commands.transaction:app", name="transaction", help="Transactions.")
app.command("strata_cli.commands.quota:app", name="quota", help="Limits of namespaces and topics.")
app.command("strata_cli.commands.tier_cluster:app", name="tier", help="Tiered storage.")
app.command("strata_cli.commands.kv:app", name="kv", help="Key-value tables (plugin kv).")
app.command("strata_cli.commands.placement:app", name="placement", help="Plans of moves.")
app.command("strata_cli.commands.log:app", name="log", help="CommitLogs, with no server.")


def main() -> None:
    """Run the command line of this process."""
    # What gRPC has to say of handshakes and calls that failed would stand among our own lines,
    # as often as a client likes.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    end_process(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = app(
            list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
        # A command that checks something answers with its exit code.
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        return _fail(f"{one_line_of(error)} (see strata --help)")
    except StrataError as error:
        return _fail(one_line(error))
    except UnicodeEncodeError as error:
        return _fail(f"{error.object!r} is not UTF-8 text")
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        return _fail(one_line(error))
    except Exception as error:
        # The boundary of the process: whatever it was, one line is promised.
        if os.environ.get("STRATA_TRACEBACK"):
            raise
        return _fail(f"{one_line(error)} (a mistake in strata; STRATA_TRACEBACK=1 tells where)")


def one_line_of(error: CycloptsError) -> str:
    """Return what is wrong with a command line, without line breaks."""
    return " ".join(str(error).split())


def _fail(reason: str) -> int:
    print(f"strata: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
