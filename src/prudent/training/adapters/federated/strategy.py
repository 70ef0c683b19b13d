"""A Flower strategy whose rounds are the steps of a plan."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from logging import INFO
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from prudent import _extras, _validate
from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptFile, ReceiptTarget
from prudent.records.reader import Form, Leaf
from prudent.training.adapters.federated.release import RoundRelease
from prudent.training.keystream import Key, NoCopyMixin, Purpose, uniforms
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge

with _extras.needed("prudent.training.adapters.federated.PrivateStrategy"):
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )
    from flwr.common import log
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy


@attrs.frozen
class Layout:
    """The names, shapes and types of a model's arrays, in order."""

    entries: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> "Layout":
        """That of a model."""
        found = {name: array.numpy() for name, array in arrays.items()}
        for name, values in found.items():
            if not np.issubdtype(values.dtype, np.floating):
                allowed, shown = "of floating-point numbers", f"{values.dtype} for {name!r}"
                why = "noise cannot be added to integers"
                hint = "Do not send it; replace layers that count, such as batch normalisation."
                raise ArgumentError("arrays", allowed, shown=shown, why=why, hint=hint)
        if not sum(values.size for values in found.values()):
            raise ArgumentError("initial_arrays", "with at least one number", shown="none")
        return cls({name: (values.shape, values.dtype) for name, values in found.items()})

    @property
    def sizes(self) -> list[int]:
        """Number of values in each array."""
        return [math.prod(shape) for shape, _ in self.entries.values()]

    def flatten(self, arrays: ArrayRecord) -> Tensor:
        """All values as one double-precision vector; raises an error if the layout differs."""
        if list(arrays) != list(self.entries):
            allowed = "with the names of the model's arrays"
            raise ArgumentError("arrays", allowed, shown="other names")
        parts = []
        for name, (shape, _) in self.entries.items():
            values = arrays[name].numpy()
            row = Form(Leaf(torch.float64, shape)).row(values)
            if row is None or not np.issubdtype(values.dtype, np.floating):
                raise ValueError(f"Expected {name!r} of shape {shape}, got another array.")
            parts.append(row[0].reshape(-1))
        return torch.cat(parts)

    def unflatten(self, vector: Tensor) -> ArrayRecord:
        """The named arrays of a vector, with the model's shapes and types."""
        parts = torch.split(vector.detach(), self.sizes)
        return ArrayRecord(
            {
                name: Array(part.numpy().reshape(shape).astype(dtype))
                for (name, (shape, dtype)), part in zip(self.entries.items(), parts, strict=True)
            }
        )

    def read(self, reply: Message) -> Tensor | None:
        """The model that a client sent back, or None if the reply does not hold one.

        A client may send anything. What it sends must affect only its own update, so this never
        raises: an error would let one client stop the round for all.
        """
        try:
            if reply.has_error():
                return None
            (arrays,) = reply.content.array_records.values()
            return self.flatten(arrays)
        except Exception:
            return None


class PrivateStrategy(NoCopyMixin, Strategy):
    """Client-level private and, with `ProposeTestRelease`, robust federated learning in Flower.

    Replaces `FedAvg` in a server app; client apps need no changes. They receive the model under
    "arrays" and send back the model they trained, in a record of its own. Anything else they send
    (numbers of examples, losses) is ignored, because it is not accounted for.

    In each round the server draws every connected client independently with probability
    `plan.sampling_rate`. Their updates are released by `RoundRelease`; the negative of the released
    update is then passed as the gradient to any torch optimizer, which is post-processing.

    | case | what happens |
    |---|---|
    | no client is drawn | no message is sent; the update is noise |
    | a client fails, drops out, or answers too late | as if it had not been drawn |
    | other names, shapes or types; NaN; more than one record | as if it had not been drawn |
    | a second answer, or one from a client that was not drawn | ignored |
    | more rounds than `plan.steps` | refused before the first of them |
    | a copy or a pickle of the strategy | refused: it would draw the same noise again |

    Guarantee:
        The models sent and returned and the metrics of every round are together (ε, δ)-DP as
        `plan.event` states, for neighbours by `plan.relation` whose record is the participation of
        one client, whatever that client holds and does. The identities and the number of the
        clients are public, so without a `plan.expected_batch` the relation is zero-out. The server
        is trusted: it sees every update and which clients were drawn. An observer of its network
        also sees which clients were drawn, and against that observer sampling does not amplify
        privacy.

    Args:
        plan: Sampling rate, rounds (`steps`) and aggregation; one client is one record.
        clients: The public number of clients. The first round waits until that many are connected.
        optimizer: The server's optimizer; by default SGD with learning rate 1, which adds the
            update.
        seed: Derive the key of sampling and noise from this number; `summary` reports it. Whoever
            knows the number can subtract the noise. None, the default: a key from the operating
            system.
        patience: Seconds that the first round waits before it starts with the connected clients.
        ledger: A `prudent.Ledger` that is charged for all rounds of the plan before the first draw.
        receipt: Where the receipt goes when `start` ends.
        options: Options of the optimizer.

    Attributes:
        plan: As given.
        taken: Number of rounds released so far.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        clients: int,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        seed: int | None = None,
        patience: float = 60.0,
        ledger: LedgerLike | None = None,
        receipt: ReceiptTarget | None = None,
        **options: Any,
    ) -> None:
        self.plan = plan
        self.clients = _validate.count(1, clients=clients)
        self.patience = _validate.non_negative(patience=patience)
        self._optimizer_of = optimizer
        self._options = options or {"lr": 1.0}
        self._key = Key.random() if seed is None else Key.from_seed(seed)
        self._charge = RunCharge(ledger, plan, protected="client", kind="federated")
        self._receipt = ReceiptFile.at(receipt)
        self._draws = 0
        self._layout: Layout | None = None
        self._drawn: frozenset[int] | None = None

    @property
    def taken(self) -> int:
        """Number of rounds released so far."""
        return 0 if self._layout is None else self._release.taken

    def epsilon(self, delta: float) -> float:
        """The ε of the rounds released so far.

        If the decision to stop depended on the model, use `plan.epsilon` instead: only that bound
        holds.
        """
        return self.plan.epsilon_after(self.taken, delta)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds, at most as many as the plan has left; see Flower for the arguments."""
        left = self.plan.steps - self.taken
        if num_rounds > left:
            allowed = f"at most {left}, the rounds that the plan has left"
            hint = "Start with a plan of more steps."
            raise _validate.ArgumentError("num_rounds", allowed, got=num_rounds, hint=hint)
        result = super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        self.write_receipt()
        return result

    def write_receipt(self) -> None:
        """Write the receipt of the rounds released so far, at the price of all of the plan."""
        if self._receipt is not None and self._layout is not None:
            facts: dict[str, Any] = {"rounds": self.taken}
            facts["predictable"] = self._key.predictable
            state = partial(self._parameters, self._layout)
            ended = self.taken == self.plan.steps  # the ledger notes one answer, the last one
            self._charge.write_receipt(self._receipt, state, ended=ended, **facts)

    def _parameters(self, layout: Layout) -> dict[str, Tensor]:
        arrays = layout.unflatten(self._model)
        return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}

    def summary(self) -> None:
        """Log the plan and whether its noise is predictable."""
        log(INFO, "\t├──> %s", self.plan)
        log(INFO, "\t├──> every ε is for %s", self.plan.relation.sentence("client"))
        log(INFO, "\t└──> %d clients", self.clients)
        if self._key.predictable:
            log(INFO, "\t     The noise is predictable: the strategy is seeded.")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients of a round and create the messages that send them the model."""
        self.plan.refuse_beyond(self.taken, "rounds")
        self._set_model(arrays)  # what cannot be released is refused before it is paid for
        self._charge.pay()
        drawn = self._draw(self._connected(grid))
        self._drawn = frozenset(drawn)
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        return [
            Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)
            for node in drawn
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Release the update of a round and take the server's optimizer step."""
        if self._layout is None or self._drawn is None:
            raise ValueError(
                f"Expected configure_train before aggregate_train of round {server_round}: every "
                "release needs a draw of its own."
            )
        answers: dict[int, Message] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if node in self._drawn:
                answers.setdefault(node, reply)
        self._drawn = None
        models = (self._layout.read(answers[node]) for node in sorted(answers))
        updates = [model - self._model.detach() for model in models if model is not None]
        released, outcome = self._release(updates)
        if self._receipt is None:  # else with the digest of what the receipt of all rounds holds
            self._charge.note_release()
        self._model.grad = -released
        self._optimizer.step()
        public = MetricRecord(
            {"passed": int(outcome.passed), "trim": outcome.trim, "noise": outcome.noise}
        )
        return self._layout.unflatten(self._model), public

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send no messages: results on the clients' data would be an additional release."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None. Use `evaluate_fn` of `start` to evaluate on public data."""
        return None

    def _set_model(self, arrays: ArrayRecord) -> None:
        layout = Layout.of(arrays)
        if self._layout is None:
            self._model = torch.nn.Parameter(layout.flatten(arrays))
            self._optimizer = self._optimizer_of([self._model], **self._options)
            self._release = RoundRelease(
                self.plan,
                sum(layout.sizes),
                expected_clients=self.plan.sampling_rate * self.clients,
                key=self._key,
            )
            self._layout = layout
        elif layout != self._layout:
            raise _validate.ArgumentError("arrays", "of the same names and shapes in every round")
        self._model.data.copy_(layout.flatten(arrays))

    def _connected(self, grid: Grid) -> list[int]:
        """The connected clients by id; the first round waits for the public number of them."""
        deadline = time.monotonic() + self.patience
        while len(nodes := sorted(grid.get_node_ids())) < self.clients:
            if self.taken or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return nodes

    def _draw(self, nodes: list[int]) -> list[int]:
        """Draw every client independently with the plan's rate, with new random bits each time."""
        stream = self._key.stream(Purpose.SAMPLING)
        coins: Tensor = uniforms(stream.words(len(nodes), step=self._draws))
        self._draws += 1
        chosen = coins <= self.plan.sampling_rate
        return [node for node, heads in zip(nodes, chosen.tolist(), strict=True) if heads]
