"""TLS of a remoting connection, as RocketMQ has it: on the port for plaintext, by the first byte.

Bytes go in and out; nothing here reads, writes or waits.
"""

from __future__ import annotations

import ssl

from strata_remoting import RemotingError

_HANDSHAKE = 0x16
# The most of one record of TLS, so that nothing larger is reserved for each read.
_READ_BYTES = 16_384


def begins_tls(data: bytes) -> bool:
    """Whether the first bytes of a connection are those of TLS: no frame is as long as that."""
    return data[0] == _HANDSHAKE


class TlsBytes:
    """One connection.

    Attributes:
        is_open: whether the handshake is done.
        has_ended: whether the client has ended TLS; nothing arrives after that.

    Args:
        context: of the server.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_open = False
        self.has_ended = False

    def received(self, data: bytes) -> bytes:
        """Return the plaintext of what arrived; `to_write` has the answer of TLS itself.

        Raises:
            RemotingError: the bytes are no TLS.
        """
        self._in.write(data)
        plain: list[bytes] = []
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            while piece := self._tls.read(_READ_BYTES):
                plain.append(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            raise RemotingError(f"TLS: {error.reason or error}") from None
        return b"".join(plain)

    def to_write(self) -> bytes:
        """Return what is to be written now: of a handshake, or an alert."""
        return self._out.read()

    def sealed(self, data: bytes) -> bytes:
        """Return plaintext as it is written.

        Raises:
            ConnectionResetError: TLS is not open, or has failed.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError as error:
            raise ConnectionResetError(f"TLS: {error.reason or error}") from None
        return self._out.read()
