"""The release of one private update from the updates of a round's clients.

The updates of a round are treated like the gradients of a batch: `Aggregation.decide` maps their
norms to weights and noise.

| case | what happens |
|---|---|
| no client was drawn, or none answered | noise |
| an update that is NaN or infinite anywhere | counts as zero |
| a client that failed or dropped out | its update is missing, with the same effect |
| fewer updates than the trim | the trimmed sum is zero: noise |
| the test fails and the fallback is to skip | the update is zero |
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prudent import _validate
from prudent.training.aggregation import Decision
from prudent.training.keystream import Key, given_or_random
from prudent.training.noise import HostNoise, StepState, noise_factor
from prudent.training.plan import Plan

_HOST = torch.device("cpu")


class RoundOutcome(NamedTuple):
    """The public outcome of a round, besides its update.

    Attributes:
        passed: Whether the robust branch was taken.
        trim: F, the number of updates that the robust branch of the round trims.
        noise: Standard deviation of the noise on the sum, without the factor that pays for rounding
            (`noise_factor`).
    """

    passed: bool
    trim: int
    noise: float


class RoundRelease:
    """Releases the mean update of each round: norms, test, weights, one sum, noise.

    With E the expected number of clients, the update of a round is

        (Σ wᵢ uᵢ + noise) / E,    wᵢ from the norms ‖uᵢ‖ by the plan's aggregation.

    If the aggregation is a `Sum`, this is DP-FedAvg.

    Guarantee:
        If every client joins a round independently with the plan's rate, and nothing else reveals
        which clients did, all rounds together are as private as `plan.event` states, for neighbours
        by `plan.relation` whose record is one whole client. A round beyond `plan.steps` raises an
        error.

        Proof that one client changes Σ wᵢuᵢ by at most R: the updates released before are public,
        so condition on them. The divisor E is a constant. Client j adds the summand wⱼuⱼ, of norm
        min(‖uⱼ‖, R) ≤ R, and changes no other uᵢ, so a sum changes by at most R. A trimmed sum
        keeps all but the F longest in one fixed order; adding j adds to the kept ones either j
        itself or, if j is trimmed, at most one client that was trimmed before, so the trimmed sum
        changes by at most R, and by at most τ while the margin is positive (Errata 1), which is
        what the test checks. Nothing else depends on j. It would if the sum were divided by the
        number of drawn clients.

        A client that fails, drops out or sends something unusable adds no summand, as if it had not
        been drawn: its influence stays bounded, even if it fails on purpose.

    Args:
        plan: Sampling rate, rounds (`steps`) and aggregation; one client is one record.
        dimension: Number of values in an update.
        expected_clients: E, the sampling rate times the public number of clients; the plan's
            `expected_batch` if it has one.
        key: The key of all noise; a new one from the operating system unless given. Never use a key
            twice.

    Attributes:
        dimension: Number of values in an update.
        state: What one round passes on to the next: the trim and the number of released rounds.
    """

    def __init__(
        self,
        plan: Plan,
        dimension: int,
        *,
        expected_clients: float | None = None,
        key: Key | None = None,
    ) -> None:
        _validate.instance(Plan, "a Plan", plan=plan)
        if plan.watch is not None or plan.held_out is not None:
            allowed, why = "without watch and held_out", "clients send updates and no losses"
            raise _validate.ArgumentError("plan", allowed, shown="one", why=why)
        plan.refuse_allocation()
        if plan.num_bands > 1:
            shown = f"num_bands={plan.num_bands}"
            why = "clients join when they can, and correlated noise needs them in turns"
            raise _validate.ArgumentError("plan", "with num_bands=1", shown=shown, why=why)
        self.plan = plan
        self.expected_clients = plan.divisor(expected_clients=expected_clients)
        self._noise = HostNoise(given_or_random(key), _HOST)
        self.dimension = _validate.count(1, dimension=dimension)
        start = plan.aggregation.trim.start(self.expected_clients)
        self.state = StepState.start(start, _HOST)

    @property
    def taken(self) -> int:
        """Number of rounds released so far."""
        return self.state.taken

    def __call__(self, updates: Sequence[Tensor]) -> tuple[Tensor, RoundOutcome]:
        """Release one round: the private mean update, in double precision, and its public outcome.

        Args:
            updates: One vector per client that replied, ordered by client id.
        """
        for update in _validate.values(updates=updates):
            _validate.instance(Tensor, "tensors", updates=update)
            if update.shape != (self.dimension,):
                allowed = f"of shape {(self.dimension,)}"
                raise _validate.ArgumentError("updates", allowed, got=tuple(update.shape))
        self.plan.refuse_beyond(self.taken, "rounds")
        self.state.begin()
        aggregation, policy = self.plan.aggregation, self.plan.aggregation.trim
        lengths = [float(update.double().norm()) for update in updates]
        norms = torch.tensor(lengths, dtype=torch.float64)
        valid = torch.ones_like(norms, dtype=torch.bool)
        trimmed = policy.records(self.state.trim)
        words = self._noise.test_words(self.state)
        decision = aggregation.decide(norms, valid, trimmed, words)
        released = self._noisy_mean(updates, decision)
        following = policy.next(self.state.trim, decision.passed, self.expected_clients)
        self.state.trim.copy_(following)
        outcome = RoundOutcome(bool(decision.passed), int(trimmed), float(decision.noise))
        return released, outcome

    def _noisy_mean(self, updates: Sequence[Tensor], decision: Decision) -> Tensor:
        """Sum the updates in double precision, one at a time to save memory, and add noise.

        A round that is skipped has weights and noise of zero.
        """
        total = torch.zeros(self.dimension, dtype=torch.float64)
        for update, weight in zip(updates, decision.weights, strict=True):
            if weight > 0:  # NaN updates also have weight 0, and NaN times 0 is NaN
                total.add_(update.double(), alpha=float(weight))
        factor = noise_factor(self.dimension, 1, torch.float64)
        self._noise.add_(total, decision.noise * factor, self.state)
        return total / self.expected_clients * decision.scale
