"""TLS of a remoting connection, as RocketMQ has it: on the port for plaintext, by the first byte.

Bytes go in and out; nothing here reads, writes or waits.
"""

from __future__ import annotations

import ssl

from strata_remoting import RemotingError

_HANDSHAKE = 0x16
_READ_BYTES = 262_144


def begins_tls(data: bytes) -> bool:
    """Whether the first bytes of a connection are those of TLS: no frame is as long as that."""
    return data[0] == _HANDSHAKE


class TlsBytes:
    """One connection.

    Attributes:
        is_open: whether the handshake is done.

    Args:
        context: of the server.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_open = False

    def received(self, data: bytes) -> bytes:
        """Return the plaintext of what arrived; `to_write` has the answer of TLS itself.

        Raises:
            RemotingError: the bytes are no TLS, or the client has ended it.
        """
        self._in.write(data)
        plain: list[bytes] = []
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            while piece := self._tls.read(_READ_BYTES):
                plain.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(plain)
        except ssl.SSLError as error:
            raise RemotingError(f"TLS: {error.reason or error}") from None
        raise RemotingError("TLS: the client has ended it")

    def to_write(self) -> bytes:
        """Return what is to be written now: of a handshake, or an alert."""
        return self._out.read()

    def sealed(self, data: bytes) -> bytes:
        """Return plaintext as it is written."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        return self._out.read()
