"""Spaces whose store fails, and queues that cannot be read: a leader uploads without them for now.

One raft group uploads one object at a time. Without this, a store that is gone, or one damaged
entry, would stop the uploads of all other messages of the raft group.
"""

from __future__ import annotations

from strata_runtime.clock import Clock
from strata_storage.tiering.set_aside import SetAside, SetAsideOptions

QueueKey = tuple[int, int]
"""(topic id, queue)."""


class UploadFailures:
    """Failures of one leader's uploads in one term; the backlog asks it what is left out.

    Args:
        options: for how long something is left out.
        clock: time.

    Attributes:
        spaces: spaces whose store failed.
        queues: queues with messages that the log does not give.
    """

    def __init__(self, options: SetAsideOptions, clock: Clock) -> None:
        self.spaces: SetAside[str] = SetAside(options, clock)
        self.queues: SetAside[QueueKey] = SetAside(options, clock)
        # After a failure the spaces that fail wait for one object of another one: each try may
        # last as long as the repeats of a store, and there may be many such spaces.
        self._gives_way = False
        self._last = ""

    def __len__(self) -> int:
        return len(self.spaces) + len(self.queues)

    @property
    def reason(self) -> str:
        """Why the last try failed, or else why something is left out; empty: nothing fails."""
        return self._last or self.spaces.reason or self.queues.reason

    def is_space_aside(self, space: str, /) -> bool:
        """Whether nothing goes to a space now."""
        return self.spaces.holds(space) or (self._gives_way and space in self.spaces)

    def is_queue_aside(self, topic_id: int, queue: int, /) -> bool:
        """Whether nothing of a queue is uploaded now."""
        return self.queues.holds((topic_id, queue))

    def failed(self, error: Exception, space: str | None) -> bool:
        """Take in that a try failed.

        Args:
            error: how.
            space: is left out for a while, for its store failed; None: it was something else.

        Returns:
            Whether that is news, for the log.
        """
        before, self._last = self._last, str(error)
        if space is None:
            return self._last != before
        self._gives_way = True
        return self.spaces.add(space, self._last)

    def worked(self) -> None:
        """Take in that a try did not fail."""
        self._last = ""

    def uploaded(self, space: str) -> None:
        """Take in that a space took an object."""
        self._gives_way = False
        self.spaces.remove(space)

    def nothing_else_waits(self) -> None:
        """Let the spaces that fail be tried again, once their pauses are over."""
        self._gives_way = False

    def retry_all(self) -> None:
        """End all pauses: somebody asks for everything to be uploaded now."""
        self._gives_way = False
        self.spaces.retry_all()
        self.queues.retry_all()
