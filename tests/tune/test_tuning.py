"""The search: what it charges, runs, keeps and releases."""

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import pytest

import prudent.tune as tuning
from prudent import Ledger
from prudent.accounting import ApproximateDpEvent, PldAccountant, UnreachableTargetError
from prudent.budget.ledger import OverBudgetError
from prudent.tune import (
    Binomial,
    Candidate,
    Geometric,
    Scored,
    Trial,
    calibrate,
    price,
    tune,
)
from prudent.tune.candidate import attempt, outcome, prune, side_by_side

EVENT = ApproximateDpEvent(0.1, 0.0)


def space(trial: Trial) -> None:
    trial.float("x", 0.0, 1.0)


def run(setting: Any, folder: Path) -> Scored:
    (folder / "model.txt").write_text(repr(setting["x"]))
    return Scored(setting["x"], {"twice": 2 * setting["x"]})


CANDIDATE = Candidate(run, EVENT)


class Recording:
    """A run that keeps its settings, and fails or stops where told. It has no fingerprint."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.settings: list[Any] = []
        self.stop_at = stop_at
        self.opaque = threading.Lock()

    def __call__(self, setting: Any, folder: Path) -> Scored:
        if len(self.settings) == self.stop_at:
            raise KeyboardInterrupt
        self.settings.append(dict(setting))
        return run(setting, folder)


def test_the_best_candidate_is_released(tmp_path: Path) -> None:
    work = Recording()
    best = tune(Candidate(work, EVENT), space, trials=Binomial(8, 1.0), delta=0.0, out=tmp_path)
    assert len(work.settings) == 8
    assert best.score == max(setting["x"] for setting in work.settings)
    assert best.setting == {"x": best.score}
    assert best.value == {"twice": 2 * best.score}
    assert best.folder is not None
    assert (best.folder / "model.txt").read_text() == repr(best.score)
    assert best.epsilon == price(EVENT, Binomial(8, 1.0), 0.0) > best.candidate_epsilon >= 0.1
    assert "one candidate alone" in str(best)


def test_nothing_but_the_best_candidate_is_left(tmp_path: Path) -> None:
    work = Recording()
    tune(Candidate(work, EVENT), space, trials=Binomial(6, 1.0), delta=0.0, out=tmp_path)
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    best = max(setting["x"] for setting in work.settings)
    for setting in work.settings:
        assert (repr(setting["x"]).encode() in left) == (setting["x"] == best)
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"best", "receipt.json", "result.json", "running.lock"}
    assert "settings" not in json.loads((tmp_path / "result.json").read_text())


def test_the_ledger_is_charged_before_the_first_candidate(tmp_path: Path) -> None:
    seen: list[float] = []
    trials = Geometric(5)
    with Ledger.create(tmp_path / "budget.db", epsilon=1.0, delta=1e-6) as ledger:

        def spending(setting: Any, folder: Path) -> float:
            seen.append(len(ledger.history()))
            return 0.0

        best = tune(Candidate(spending, EVENT), space, trials=trials, delta=0.0, ledger=ledger)
        (charge,) = ledger.history()
        assert set(seen) == {1}
        assert charge.event == trials.event(EVENT) == best.event
        # An under-count would be the price of one candidate.
        assert charge.epsilon is not None
        assert charge.epsilon > 0.2


@pytest.mark.unhurried
def test_a_search_that_costs_too_much_reads_no_data(tmp_path: Path) -> None:
    work = Recording()
    candidate = Candidate(work, EVENT)
    with Ledger.create(tmp_path / "budget.db", epsilon=0.15, delta=1e-6) as ledger:
        with pytest.raises(OverBudgetError):
            tune(candidate, space, trials=Binomial(9, 1.0), delta=0.0, ledger=ledger)
        assert not ledger.history()
    with pytest.raises(ValueError, match="epsilon"):
        tune(candidate, space, trials=Binomial(9, 1.0), delta=0.0, epsilon=0.15)
    assert not work.settings


@pytest.mark.unhurried
def test_a_killed_search_goes_on_with_what_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first = tmp_path / "run", Recording(stop_at=3)
    arguments: dict[str, Any] = {"trials": Binomial(7, 1.0), "delta": 0.0, "out": out}
    with Ledger.create(tmp_path / "budget.db", epsilon=5.0, delta=1e-6) as ledger:
        with pytest.raises(KeyboardInterrupt):
            tune(Candidate(first, EVENT), space, ledger=ledger, **arguments)
        state = json.loads((out / "secret" / "state.json").read_text())
        with pytest.raises(ValueError, match="resume"):
            tune(Candidate(first, EVENT), space, ledger=ledger, **arguments)

        def no_more_draws(*_: Any) -> Any:
            raise AssertionError("drawn anew")

        monkeypatch.setattr("prudent.tune.tuning.draw_count", no_more_draws)
        monkeypatch.setattr("prudent.tune.tuning.draw_setting", no_more_draws)
        with pytest.raises(ValueError, match="same event"):
            tune(Candidate(first, ApproximateDpEvent(0.2, 0.0)), space, resume=True, **arguments)
        second = Recording()
        with pytest.warns(RuntimeWarning, match="all of its candidates are run again"):
            best = tune(Candidate(second, EVENT), space, ledger=ledger, resume=True, **arguments)
        assert first.settings == state["settings"][:3]
        assert second.settings == state["settings"]
        assert best.score == max(setting["x"] for setting in state["settings"])
        assert len(ledger.history()) == 1
        third = Recording()
        again = tune(Candidate(third, EVENT), space, ledger=ledger, resume=True, **arguments)
        assert (again.setting, again.value, again.score) == (best.setting, best.value, best.score)
        assert not third.settings
        assert len(ledger.history()) == 1


@pytest.mark.unhurried
def test_a_kill_before_the_charge_is_charged_on_resumption(tmp_path: Path) -> None:
    class Closed:
        def charge(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    work, arguments = Recording(), {"trials": Binomial(2, 1.0), "delta": 0.0}
    with pytest.raises(KeyboardInterrupt):
        tune(Candidate(work, EVENT), space, ledger=Closed(), out=tmp_path / "run", **arguments)  # type: ignore[arg-type]
    assert not work.settings
    with Ledger.create(tmp_path / "budget.db", epsilon=5.0, delta=1e-6) as ledger:
        candidate = Candidate(work, EVENT)
        with pytest.warns(RuntimeWarning, match="run again"):
            tune(candidate, space, ledger=ledger, out=tmp_path / "run", resume=True, **arguments)  # type: ignore[arg-type]
        assert len(ledger.history()) == 1


def marked(place: Path, scale: float = 1.0) -> Any:
    """A run with a fingerprint, which writes to a folder what it did and stops where told."""

    def run(setting: Any, folder: Path) -> float:
        if (place / "stop").exists() and len(list(place.iterdir())) == 4:
            raise KeyboardInterrupt
        (place / repr(setting["x"])).touch()
        return scale * setting["x"]  # type: ignore[no-any-return]

    return run


def test_a_search_goes_on_with_the_candidate_that_it_was_begun_with(tmp_path: Path) -> None:
    """Other records, or other code, would compete with what the first ones left."""
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    (work / "stop").touch()
    arguments: dict[str, Any] = {"trials": Binomial(7, 1.0), "delta": 0.0, "out": out}
    with pytest.raises(KeyboardInterrupt):
        tune(Candidate(marked(work), EVENT), space, **arguments)
    (work / "stop").unlink()
    before = {path.name for path in work.iterdir()}
    assert len(before) == 3
    for path in work.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="Expected candidate the one that this search was begun"):
        tune(Candidate(marked(work, 2.0), EVENT), space, resume=True, **arguments)
    tune(Candidate(marked(work), EVENT), space, resume=True, **arguments)
    after = {path.name for path in work.iterdir()}
    assert len(after) == 4
    assert not before & after


def test_nothing_about_the_number_of_candidates_is_seen_or_left(tmp_path: Path) -> None:
    """Times, sizes, links and rights of what others may list, while it runs and afterwards."""
    outs = [tmp_path / str(count) for count in (1, 6)]
    seen: list[list[Any]] = []

    def listed(out: Path) -> list[Any]:
        found = [(path.name, path.stat()) for path in sorted(out.iterdir())]
        return [(name, facts.st_mode, facts.st_nlink, facts.st_size) for name, facts in found]

    for out, count in zip(outs, (1, 6), strict=True):

        def looking(setting: Any, folder: Path, out: Path = out) -> float:
            (folder / "sub").mkdir()
            (folder / "sub" / "weights").write_text(repr(setting))
            seen[-1:] = [listed(out)]
            os.utime(folder / "sub" / "weights", (1, 1))
            return 1.0 - setting["x"]

        seen.append([])
        tune(Candidate(looking, EVENT), space, trials=Binomial(count, 1.0), delta=0.0, out=out)
    assert seen[0] == seen[1]
    names = {name for name, *_ in seen[0]}
    assert names - {"running.lock-journal"} == {"running.lock", "secret"}
    (rights,) = [mode for name, mode, *_ in seen[0] if name == "secret"]
    assert rights & 0o777 == 0o700
    for out in outs:
        begun = json.loads((out / "result.json").read_text())["begun"]
        left = [out, *out.rglob("*")]
        assert {path.name for path in left[1:]} == {
            "best",
            "receipt.json",
            "sub",
            "weights",
            "result.json",
            "running.lock",
        }
        assert {path.stat().st_mtime for path in left} == {float(begun)}


def test_the_ledger_knows_that_a_search_is_released(tmp_path: Path) -> None:
    """Before its first candidate: a later time would tell their number."""
    with Ledger.create(tmp_path / "budget.db", epsilon=1.0, delta=1e-6) as ledger:
        noted: list[Any] = []

        def looking(setting: Any, folder: Path) -> float:
            noted.append(ledger.history()[0].outcome_text)
            return 0.0

        tune(Candidate(looking, EVENT), space, trials=Binomial(2, 1.0), delta=0.0, ledger=ledger)
        assert noted == ["released"] * 2


@pytest.mark.thorough
def test_a_price_above_the_budget_at_its_own_delta_may_fit_at_that_of_the_budget(
    tmp_path: Path,
) -> None:
    event, trials = dp.GaussianDpEvent(3.0), Geometric(10)
    below = price(event, trials, 1e-6) - 1e-4
    with Ledger.create(tmp_path / "budget.db", epsilon=below, delta=1e-5) as ledger:
        assert not ledger.fits(trials.event(event), delta=1e-6)
        tune(Candidate(run, event), space, trials=trials, delta=1e-6, ledger=ledger)
        assert len(ledger.history()) == 1


def leaving(setting: Any, folder: Path) -> float:
    (folder / "note").write_text("record seventeen")
    raise SystemExit("record seventeen")


def dying(setting: Any, folder: Path) -> float:
    if setting["x"] < 0.5:
        os._exit(3)
    return float(setting["x"])


def test_a_candidate_that_ends_its_process_has_the_worst_score(tmp_path: Path) -> None:
    worst = tune(Candidate(leaving, EVENT), space, trials=Binomial(2, 1.0), delta=0.0, out=tmp_path)
    assert (worst.score, worst.failed) == (-math.inf, True)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"seventeen" in path.read_bytes() for path in left)


@pytest.mark.thorough
def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    folders = [tmp_path / str(index) for index in range(4)]
    settings = [{"x": 0.1}, {"x": 0.7}, {"x": 0.2}, {"x": 0.9}]
    ended: list[int] = []
    jobs = zip(range(4), settings, folders, strict=True)
    side_by_side(dying, jobs, 2, ended.append)
    assert sorted(ended) == [0, 1, 2, 3]
    scores = [found["score"] for found in map(outcome, folders) if found is not None]
    assert scores == [-math.inf, 0.7, -math.inf, 0.9]


def fragile(setting: Any, folder: Path) -> float:
    if setting["x"] < 0.9:
        raise RuntimeError(f"record 17 is {setting['x']}")
    return math.nan


def test_a_failing_candidate_has_the_worst_score(tmp_path: Path, capfd: Any) -> None:
    def sometimes(setting: Any, folder: Path) -> float:
        return 1.0 if setting["x"] > 0.5 else fragile(setting, folder)

    best = tune(Candidate(sometimes, EVENT), space, trials=Binomial(40, 1.0), delta=0.0)
    assert (best.score, best.failed) == (1.0, False)
    worst = tune(Candidate(fragile, EVENT), space, trials=Binomial(3, 1.0), delta=0.0, out=tmp_path)
    assert worst.score == -math.inf
    assert worst.epsilon <= 0.3 + 1e-9
    assert "17" not in str(worst) + repr(attrs.evolve(worst, folder=None, setting=None))
    shown = capfd.readouterr()
    assert "17" not in shown.out + shown.err


def test_ties_go_to_the_candidate_that_was_drawn_first() -> None:
    order: list[float] = []

    def equal(setting: Any, folder: Path) -> Scored:
        order.append(setting["x"])
        return Scored(1.0, setting["x"])

    best = tune(Candidate(equal, EVENT), space, trials=Binomial(6, 1.0), delta=0.0)
    assert best.value == order[0]


def test_ties_keep_the_files_of_the_first_even_if_it_ends_last(tmp_path: Path) -> None:
    folders = [tmp_path / str(index) for index in range(3)]
    for folder in folders:
        attempt(lambda *_: 1.0, {}, folder)
        (folder / "model.txt").write_text("weights")
    assert prune(folders, [2, 0]) == [0]
    assert prune(folders, [0, 1]) == [0]
    assert [(folder / "model.txt").exists() for folder in folders] == [True, False, False]


def test_no_candidate_is_an_answer_too(tmp_path: Path) -> None:
    found = [
        tune(CANDIDATE, space, trials=Binomial(1, 1e-12), delta=0.0, out=tmp_path / str(n))
        for n in range(2)
    ]
    none = [best for best in found if best.setting is None]
    assert none[0].folder is None
    assert "No candidate" in str(none[0])


@pytest.mark.slow
def test_candidates_run_side_by_side(tmp_path: Path) -> None:
    trials = Binomial(3, 1.0)
    best = tune(CANDIDATE, space, trials=trials, delta=0.0, out=tmp_path, workers=2)
    assert best.folder is not None
    assert (best.folder / "model.txt").read_text() == repr(best.score)
    with pytest.raises(ValueError, match="picklable"):
        tune(Candidate(lambda *_: 0.0, EVENT), space, trials=trials, delta=0.0, workers=2)


@pytest.mark.slow
def test_the_released_law_is_that_of_the_proof() -> None:
    """Monte Carlo: randomised response as the mechanism, its bit as the score."""
    chance, trials, runs = 0.3, Geometric(5), 100

    def bit(setting: Any, folder: Path) -> float:
        return float(setting["x"] < chance)

    ones = sum(
        tune(Candidate(bit, EVENT), space, trials=trials, delta=0.0).score for _ in range(runs)
    )
    stop, missed = 1 / trials.mean, 1 - chance
    expected = 1 - stop * missed / (1 - (1 - stop) * missed)  # not all candidates missed
    spread = math.sqrt(expected * (1 - expected) / runs)
    assert abs(ones / runs - expected) < 5.5 * spread
    assert abs(ones / runs - chance) > 5.5 * spread


@pytest.mark.slow
def test_calibration_is_of_the_whole_search() -> None:
    noise = calibrate(dp.GaussianDpEvent, Geometric(10), epsilon=2.0, delta=1e-6)
    found = PldAccountant().compose(Geometric(10).event(dp.GaussianDpEvent(noise)))
    assert 2.0 * (1 - 1e-3) < found.get_epsilon(1e-6) <= 2.0
    with pytest.raises(UnreachableTargetError):
        calibrate(dp.GaussianDpEvent, Geometric(10), epsilon=2.0, delta=1e-6, most=2.0)


def test_arguments_are_checked(tmp_path: Path) -> None:
    good: dict[str, Any] = {"trials": Geometric(2), "delta": 0.0}
    for candidate, change, name in [
        (run, {}, "candidate"),
        (CANDIDATE, {"trials": 5}, "trials"),
        (CANDIDATE, {"delta": 1.0}, "delta"),
        (CANDIDATE, {"workers": 0}, "workers"),
        (CANDIDATE, {"resume": True}, "out"),
        (CANDIDATE, {"ledger": 3}, "ledger"),
    ]:
        with pytest.raises(ValueError, match=name):
            tune(candidate, space, **{**good, **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="space"):
        tune(CANDIDATE, lambda trial: trial.choice("x", [object()]), **good)
    assert set(tuning.__all__) <= set(dir(tuning))
