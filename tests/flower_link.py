"""A SuperLink behind flwr's own grid, in one process: real messages, trees and objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesResponse,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

import flower_grid  # says which task sends


class Link:
    """What flwr's client of a SuperLink's runtime API offers a grid."""

    def __init__(
        self, apps: Mapping[int, ClientApp], spoil: Callable[[Message], Message] | None = None
    ) -> None:
        self.apps, self.spoil = dict(apps), spoil
        self.objects: dict[str, bytes] = {}
        self.asked: dict[str, int] = {}  # message -> node
        self.fetched: list[str] = []  # objects that left this link
        self.lock = threading.RLock()

    def GetNodes(self, request):
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in self.apps])

    def PushMessages(self, request):
        ids = [proto.metadata.message_id for proto in request.messages_list]
        self.asked |= {
            proto.metadata.message_id: proto.metadata.dst_node_id for proto in request.messages_list
        }
        wanted = {o.object_id for t in request.message_object_trees for o in iterate_object_tree(t)}
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=wanted, session_id="s")

    def PushObject(self, request):
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullMessages(self, request):
        with self.lock:
            replies = [self.answer(i) for i in request.message_ids if i in self.asked]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(r)) for r, _ in replies],
            message_object_trees=[tree for _, tree in replies],
        )

    def PullObject(self, request):
        self.fetched.append(request.object_id)
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        return ConfirmMessageReceivedResponse()

    def answer(self, message_id: str) -> tuple[Message, ObjectTree]:
        node = self.asked.pop(message_id)
        message = inflate_object_from_contents(message_id, dict(self.objects))
        message.metadata.__dict__["_message_id"] = message_id
        reply = self.apps[node](message, Context(1, node, {}, RecordDict(), {}))
        if self.spoil and message.metadata.message_type == "train":
            reply = self.spoil(reply)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.objects |= {i: o.deflate() for i, o in get_all_nested_objects(reply).items()}
        return reply, get_object_tree(reply)


def http_grid(link: Link) -> HttpGrid:
    """flwr's own grid on top of a link."""
    assert flower_grid.TaskIdentity.run_id == 1
    grid = HttpGrid(token="none")
    grid._client = link
    grid.set_run(Run.create_empty(1))
    return grid
