"""Users as RocketMQ's tools see them: listed, shown and deleted.

Users are not made here: they are made with `strata user create`, which also makes the secret key.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.admin.v1 import admin_pb2
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.answers import succeeded, with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_remoting import AdminCode, RemotingCommand

_PAGE = 10_000
_HIDDEN = "***"


class AdminUsers:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
    """

    def __init__(self, face: OperatorFace) -> None:
        self._face = face

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.AUTH_DELETE_USER: self.delete,
            AdminCode.AUTH_GET_USER: self.one,
            AdminCode.AUTH_LIST_USER: self.every,
        }

    async def one(self, exchange: Exchange) -> RemotingCommand:
        """Answer with a user.

        Raises:
            RemotingRefusal: there is no such user, or the call was refused.
        """
        answer = await self._face.call(
            "GetUser",
            admin_pb2.GetUserRequest(name=exchange.request.text("username")),
            admin_pb2.GetUserResponse,
            exchange.caller(),
        )
        return with_json(exchange.request, _shown(answer.user))

    async def every(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the users whose names have a text in them.

        Raises:
            RemotingRefusal: the call was refused.
        """
        wanted, token = exchange.request.text("filter", ""), ""
        shown = []
        while True:
            answer = await self._face.call(
                "ListUsers",
                admin_pb2.ListUsersRequest(page_size=_PAGE, page_token=token),
                admin_pb2.ListUsersResponse,
                exchange.caller(),
            )
            shown += [_shown(user) for user in answer.users if wanted in user.name]
            token = answer.next_page_token
            if not token:
                return with_json(exchange.request, shown)

    async def delete(self, exchange: Exchange) -> RemotingCommand:
        """Delete a user with its policies.

        Raises:
            RemotingRefusal: there is no such user, or the call was refused.
        """
        await self._face.call(
            "DeleteUser",
            admin_pb2.DeleteUserRequest(name=exchange.request.text("username")),
            admin_pb2.DeleteUserResponse,
            exchange.caller(),
        )
        return succeeded(exchange.request)


def _shown(user: admin_pb2.User) -> dict[str, str]:
    return {
        "password": _HIDDEN,
        "userStatus": "disable" if user.disabled else "enable",
        "userType": "Super" if user.admin else "Normal",
        "username": user.name,
    }
