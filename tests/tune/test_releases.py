"""Tuning a release of a table: the proposal of a trimmed mean."""

import math
from pathlib import Path
from typing import Any

import pytest

from prudent import Ledger, release
from prudent.tune import Binomial, Candidate, Scored, Trial, price, tune

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

NUMBERS = [float(37 * i % 91_000) for i in range(2_000)]
PROPOSALS = [1.0, 400.0]  # the first has less noise and is always refused; the other passes


def trimmed(propose: float, **options: Any) -> Any:
    asked: dict[str, Any] = {"trim": 100, "epsilon": 0.3, "delta": 1e-7, "bounds": (0, 250_000)}
    return release.trimmed_mean(NUMBERS, propose=propose, **asked, **options)


def run(setting: Any, folder: Path) -> Scored:
    answer = trimmed(setting["propose"])
    if isinstance(answer, release.Refused):
        return Scored(-math.inf)
    return Scored(-answer.noise_scale, answer.value)


def space(trial: Trial) -> None:
    trial.choice("propose", PROPOSALS)


@pytest.mark.thorough
@pytest.mark.usefixtures("same_draws")
def test_the_least_proposal_that_passes_is_released_at_one_price(tmp_path: Path) -> None:
    event = trimmed(PROPOSALS[0], dry_run=True).event
    for propose in PROPOSALS:  # a release has the event that was declared, whatever its outcome
        assert trimmed(propose, dry_run=True).event == event
        assert trimmed(propose).event == event
    trials = Binomial(8, 1.0)
    with Ledger.create(tmp_path / "budget.db", epsilon=20.0, delta=1e-4) as ledger:
        best = tune(Candidate(run, event), space, trials=trials, delta=1e-5, ledger=ledger)
        (charge,) = ledger.history()
    assert best.setting is not None
    assert best.setting["propose"] == 400.0
    assert best.value is not None
    assert charge.event == trials.event(event)
    assert best.epsilon == price(event, trials, 1e-5) > 2 * best.candidate_epsilon
