"""The program that runs before each start of a member (RIP-31's boot hook)."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from strata_cli.container.files import MemberFile
from strata_runtime.errors import StrataError
from strata_runtime.timeouts import Timeout

_MAX_SHOWN = 500


class BootHookError(StrataError):
    """The program did not allow a start; the message says why."""


class BootHook:
    """See the module docstring.

    Args:
        command: program and arguments; empty: nothing runs.
        timeout_s: after which the program is killed.
    """

    def __init__(self, command: Sequence[str] = (), timeout_s: float = 30.0) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s

    async def run(self, file: MemberFile) -> None:
        """Run the program for a member.

        Raises:
            BootHookError: it ended with another exit code than 0, or not in time.
            OSError: it cannot be run.
        """
        if not self._command:
            return
        member = file.config.member
        variables = {
            "STRATA_HOOK_MEMBER": file.name,
            "STRATA_HOOK_ROLE": member.role,
            "STRATA_HOOK_CONFIG": str(file.path),
            "STRATA_HOOK_DATA_DIR": str(member.data_dir),
        }
        # No pipe: its end would come with the last program that the hook has started, not with it.
        with await asyncio.to_thread(tempfile.TemporaryFile) as said:
            code = await self._ended({**os.environ, **variables}, said)
            if code:
                reason = await asyncio.to_thread(_end_of, said)
                raise BootHookError(f"the boot hook ended with {code}: {reason}")

    async def _ended(self, variables: Mapping[str, str], said: IO[bytes]) -> int:
        """Run the program; return its exit code.

        Raises:
            BootHookError: it did not end in time; it and what it has started are killed.
        """
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            async with Timeout(self._timeout_s):
                return await process.wait()
        except TimeoutError:
            raise BootHookError(
                f"the boot hook did not end within {self._timeout_s:.1f} s"
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _end_of(file: IO[bytes]) -> str:
    """Return the end of a text that a program has written."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - _MAX_SHOWN))
    return file.read().decode(errors="replace").strip()
