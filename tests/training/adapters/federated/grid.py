"""A grid within one process: it hands real messages to functions and back."""

from collections.abc import Callable, Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Client = Callable[[Message], list[Message]]


class LocalGrid(Grid):
    """Clients by node id; each takes a message to its replies, usually one.

    Attributes:
        sent: The node ids of every round, in the order they were addressed.
    """

    def __init__(self, clients: dict[int, Client]) -> None:
        self.clients = clients
        self.sent: list[list[int]] = []
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return reversed(list(self.clients))  # in no order worth relying on

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent.append([message.metadata.dst_node_id for message in messages])
        replies = [
            reply
            for message in messages
            for reply in self.clients[message.metadata.dst_node_id](message)
        ]
        return reversed(replies)


def arrays(**values) -> ArrayRecord:
    """Named arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def adding(update: dict, **metrics) -> Client:
    """A client whose update is always the same, with whatever it reports beside."""

    def answer(message: Message) -> list[Message]:
        model = message.content["arrays"]
        moved = {name: array.numpy() + update[name] for name, array in model.items()}
        content = RecordDict({"model": arrays(**moved), "metrics": MetricRecord(metrics)})
        return [Message(content, reply_to=message)]

    return answer
