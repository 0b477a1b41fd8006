"""A request or an answer of the remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strata_remoting.codes import Language

ACCESS_KEY = "AccessKey"
"""Field with the name of the user who signed a request."""

SIGNATURE = "Signature"
"""Field with the signature."""

SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
"""Field with a token of a session, if the key is one of a session."""

_RESPONSE = 1
_ONEWAY = 2


class RemotingError(Exception):
    """Bytes or fields that are no part of the protocol; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class RemotingCommand:
    """One frame.

    Attributes:
        code: a `RequestCode` of a request, a `ResponseCode` of an answer; others exist too.
        opaque: number by which the sender of a request recognises the answer.
        fields: `extFields`: the arguments of this kind of request, by name.
        body: what follows the header.
        flag: bit 0: an answer; bit 1: a request that gets no answer.
        language: number of the sender's language.
        version: number of the sender's version.
        remark: text of an answer, mostly of a refusal.
    """

    code: int
    opaque: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    flag: int = 0
    language: int = Language.JAVA
    version: int = 0
    remark: str = ""

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether its sender expects no answer."""
        return bool(self.flag & _ONEWAY)

    def oneway(self) -> RemotingCommand:
        """Return the same request for which no answer is expected."""
        return replace(self, flag=self.flag | _ONEWAY)

    def answered(
        self,
        code: int,
        remark: str = "",
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        version: int = 0,
    ) -> RemotingCommand:
        """Return the answer to this request.

        Args:
            code: a `ResponseCode`.
            remark: text for the client's log.
            fields: of the answer's header.
            body: of the answer.
            version: of the server.
        """
        return RemotingCommand(
            code,
            self.opaque,
            fields or {},
            body,
            flag=_RESPONSE,
            language=Language.OTHER if self.language != Language.JAVA else Language.JAVA,
            version=version,
            remark=remark,
        )

    def signed_content(self) -> bytes:
        """Return what a signature of ACL 1.0 covers: all other fields by name, and the body.

        Source of the rule: RocketMQ's `AclUtils.combineRequestContent`.
        """
        names = sorted(name for name in self.fields if name != SIGNATURE)
        text = "".join([self.fields[name] for name in names])
        # Java writes a question mark for half of a pair, too.
        return text.encode(errors="replace") + self.body

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field.

        Raises:
            RemotingError: the field is missing and there is no default.
        """
        value = self.fields.get(name, default)
        if value is None:
            raise RemotingError(f"the field {name} is missing")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a field as a number of 64 bits with a sign.

        Raises:
            RemotingError: the field is missing and there is no default, or it is no such number.
        """
        text = self.fields.get(name)
        if text is None:
            if default is None:
                raise RemotingError(f"the field {name} is missing")
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
            raise RemotingError(f"the field {name} is no number: {text[:40]!r}")
        value = int(text)
        if not -(1 << 63) <= value < 1 << 63:
            raise RemotingError(f"the field {name} has more than 64 bits: {text[:40]}")
        return value

    def truth(self, name: str, *, default: bool) -> bool:
        """Return a field as true or false.

        Java writes `true` and `false`, the client in C++ `1` and `0`; anything else is false.
        """
        text = self.fields.get(name)
        return default if text is None else text.lower() in _TRUE


_MOST_DIGITS = 19
_TRUE = ("true", "1")
