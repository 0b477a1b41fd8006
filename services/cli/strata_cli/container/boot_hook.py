"""The program that runs before each start of a member (RIP-31's boot hook)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

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
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with Timeout(self._timeout_s):
                _, error = await process.communicate()
        except TimeoutError:
            raise BootHookError(
                f"the boot hook did not end within {self._timeout_s:.1f} s"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = error.decode(errors="replace").strip()[-_MAX_SHOWN:]
            raise BootHookError(f"the boot hook ended with {process.returncode}: {said}")
