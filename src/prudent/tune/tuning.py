"""The search: draw, charge, run, release the best."""

import contextlib
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._fingerprint import fingerprint
from prudent._rounding import exact, nearest, rounded_up
from prudent._validate import ArgumentError
from prudent.accounting.calibration import Search, solve
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.losses.repeated_selection import TrialCount
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.accounting.serialisation import to_json
from prudent.budget import charge_calibrated, check_ledger
from prudent.receipts.making import ReceiptFile, ReceiptTarget, receipt_of, request_digest
from prudent.tune.candidate import (
    Candidate,
    SearchFolder,
    Setting,
    Space,
    attempt,
    draw_count,
    draw_setting,
    outcome,
    prune,
    side_by_side,
)


@attrs.frozen
class Tuned:
    """The best candidate of a search, and the price of the whole search.

    Attributes:
        setting: The setting of the best candidate; None if the number of candidates was 0.
        score: Its score; minus infinity if it failed.
        value: What else it released.
        failed: Whether the best candidate failed, that is, whether all did. Why is not kept, since
            errors may quote records: run `candidate.run` yourself with this setting.
        folder: The files of the best candidate; None without `out`.
        trials: The distribution of the number of candidates. The number itself is not released.
        event: The privacy event of the whole search.
        epsilon: Its ε at `delta`, for `relation`.
        candidate_epsilon: The ε of a single candidate at `delta`, for comparison.
        delta: δ.
        relation: The neighbouring relation.
    """

    setting: Setting | None
    score: float
    value: Any
    failed: bool
    folder: Path | None
    trials: TrialCount
    event: dp.DpEvent
    epsilon: float
    candidate_epsilon: float
    delta: float
    relation: Relation

    def __str__(self) -> str:
        total, one = (rounded_up(x, 4) for x in (self.epsilon, self.candidate_epsilon))
        price = f"ε = {total} at δ = {exact(self.delta)} for {self.relation}"
        cost = f"{price}; one candidate alone: ε = {one}"
        if self.setting is None:
            return f"No candidate was run. {cost}"
        if self.failed:
            return f"The best candidate failed. {cost}"
        named = ", ".join(f"{name} = {value!r}" for name, value in self.setting.items())
        return f"Best: {named or 'the only setting'}; score {nearest(self.score, 6)}. {cost}"


def tune(
    candidate: Candidate,
    space: Space,
    *,
    trials: TrialCount,
    delta: float,
    epsilon: float | None = None,
    ledger: Any = None,
    out: str | Path | None = None,
    receipt: ReceiptTarget | None = None,
    resume: bool = False,
    workers: int = 1,
) -> Tuned:
    """Run a random number of candidates from a search space and release the best one.

    Args:
        candidate: The mechanism with its event.
        space: The search space: a function that calls the methods of a `Trial`. It must not depend
            on the data.
        trials: The distribution of the number of candidates, such as `Geometric(30)`.
        delta: The δ at which the search is priced.
        epsilon: The largest ε allowed; a search that costs more is not begun. None: no limit.
        ledger: A `prudent.Ledger` that is charged for the whole search before the first candidate.
            Candidates must not charge it themselves.
        out: Folder of the search. Until it ends, its folder `secret` holds the number of
            candidates, their settings and outputs, and is as secret as the data; afterwards it
            holds the result and the files of the best candidate, whose times are those at which the
            search was begun.
        receipt: Where the receipt of the search goes; None: receipt.json in `out`, if there is one.
        resume: Continue the search in `out`: with the number and the settings that were drawn, and
            without charging the ledger again. If it has ended, its result is returned. Another
            candidate is refused, such as one with other records; if that cannot be compared,
            candidates that have ended are run again.
        workers: How many candidates run side by side. If more than one, each has a process of its
            own, to which it is sent by pickle; all use the same devices. A candidate whose process
            dies has the worst score.

    Returns:
        The best candidate. Ties go to the candidate that was drawn first.

    Guarantee:
        The result is (ε, δ)-DP for ε = `Tuned.epsilon`, if each candidate has the declared event
        and nobody but the owner of the data learns anything else, such as the running time.
        The number of candidates and all settings are drawn before any data are read.
    """
    _validate.instance(Candidate, "a prudent.tune.Candidate", candidate=candidate)
    _validate.function(space=space)
    _validate.instance(TrialCount, "a distribution such as Geometric(30)", trials=trials)
    delta = _validate.small_delta(ends="[)", delta=delta)
    workers = _validate.count(1, workers=workers)
    resume = _validate.flag(resume=resume)
    if resume and out is None:
        raise ArgumentError("out", "the folder of the search to resume", got=None)
    relation, event = candidate.relation, trials.event(candidate.event)
    total = price(candidate.event, trials, delta, relation)
    if epsilon is not None and total > _validate.positive(epsilon=epsilon):
        raise ArgumentError(
            "epsilon",
            f">= {rounded_up(total, 4)}, the price of the search at delta = {exact(delta)}",
            got=epsilon,
            hint="Give candidates more noise (prudent.tune.calibrate finds how much) or expect "
            "fewer of them.",
        )
    if ledger is not None:
        check_ledger(ledger, relation, who="the candidate")
    if workers > 1:
        _check_other_processes(candidate)
    folder = None if out is None else _validate.path(out=out)
    in_folder = None if folder is None else folder / "receipt.json"
    place_of_receipt = ReceiptFile.at(in_folder if receipt is None else receipt)
    with SearchFolder.at(folder) as place:
        state = _opened(place, candidate, space, trials, event, resume=resume)
        fresh = not place.has_ended
        asked = {"trials": trials, "run": state["name"], "delta": delta} if fresh else {}
        if fresh:
            if ledger is not None:
                request = request_digest("tuning", asked, None, relation)
                _charge(ledger, event, state["name"], delta, request, resumed=resume)
            _run_all(candidate, state["settings"], place, workers)
            place.keep_best(state)
        best = place.result()
        value = best["value"]
        if candidate.load is not None and best["setting"] is not None and not best["failed"]:
            value = candidate.load(best["setting"], place.best)
        if place_of_receipt is not None and fresh:
            place_of_receipt.write(
                lambda: receipt_of(
                    "tuning",
                    asked=asked,
                    event=event,
                    epsilon=total,
                    delta=delta,
                    relation=relation,
                    released={name: best[name] for name in ("setting", "score", "failed")},
                    ledger=ledger,
                    charge=_charged(ledger, state["name"]),
                )
            )
            # A later time would tell how many candidates there were.
            with contextlib.suppress(FileNotFoundError):  # it could not be written
                os.utime(place_of_receipt.path, (best["begun"], best["begun"]))
        return Tuned(
            setting=best["setting"],
            score=float(best["score"]),
            value=value,
            failed=best["failed"],
            folder=None if folder is None or best["setting"] is None else folder / place.best.name,
            trials=trials,
            event=event,
            epsilon=total,
            candidate_epsilon=epsilon_of(candidate.event, delta, relation),
            delta=delta,
            relation=relation,
        )


def _check_other_processes(candidate: Candidate) -> None:
    """Raise an error unless another process can run the candidate; it is sent to one."""
    try:
        process = multiprocessing.get_context("spawn").Process(
            target=callable, args=(candidate.run,)
        )
        process.start()
        process.join()
        reason = f"exit status {process.exitcode}" if process.exitcode else ""
    except Exception as error:  # whatever pickling raises
        reason = type(error).__name__
    if reason:
        raise ArgumentError(
            "candidate",
            "with a run that is picklable, and can be imported, for several workers",
            shown=reason,
            hint="Define it at the top of a module, or use one worker.",
        )


def _opened(
    place: SearchFolder,
    candidate: Candidate,
    space: Space,
    trials: TrialCount,
    event: dp.DpEvent,
    *,
    resume: bool,
) -> dict[str, Any]:
    """The secret state of a search: as it was kept, or drawn anew and kept."""
    plain, known = json.loads(to_json(event)), fingerprint(candidate.run)
    if (kept := place.opened(plain, known, resume=resume)) is not None:
        return kept
    settings = [draw_setting(space) for _ in range(draw_count(trials))]
    if candidate.check is not None:
        # A setting that exists only where the number of candidates is large must not show.
        for setting in settings or [draw_setting(space)]:
            candidate.check(setting)
    return place.begin(plain, known, settings)


def _charge(
    ledger: Any, event: dp.DpEvent, name: str, delta: float, request: str | None, *, resumed: bool
) -> None:
    """Charge the whole search once; a resumed one is recognised by its random name.

    That it is released is noted at once: a later time would tell how many candidates there were.
    """
    charge = _charged(ledger, name) if resumed else None
    if charge is None:
        charge = charge_calibrated(ledger, event, _label(name), delta=delta, request=request)
    if hasattr(ledger, "record_outcome") and not charge.outcome:
        ledger.record_outcome(charge, "released")


def _label(name: str) -> str:
    return f"tuning run {name}"


def _charged(ledger: Any, name: str) -> Any:
    """What a ledger has noted of a search; None if it has not, or keeps no history."""
    charges = ledger.history() if hasattr(ledger, "history") else ()
    return next((charge for charge in charges if charge.label == _label(name)), None)


def _run_all(
    candidate: Candidate, settings: list[Setting], place: SearchFolder, workers: int
) -> None:
    folders = place.candidates(len(settings))
    over = [index for index, folder in enumerate(folders) if outcome(folder) is not None]
    waiting = sorted(set(range(len(folders))) - set(over))
    best = prune(folders, over)

    def ended(index: int) -> None:
        best[:] = prune(folders, [*best, index])

    if workers == 1:
        for index in waiting:
            attempt(candidate.run, settings[index], folders[index])
            ended(index)
        return
    jobs = [(index, settings[index], folders[index]) for index in waiting]
    side_by_side(candidate.run, jobs, workers, ended)


def price(
    candidate: dp.DpEvent, trials: TrialCount, delta: float, relation: Relation = ADD_REMOVE
) -> float:
    """The ε at which releasing the best candidate is (ε, δ)-DP.

    Args:
        candidate: The event of one candidate, its score included.
        trials: The distribution of the number of candidates.
        delta: δ.
        relation: The neighbouring relation.
    """
    _validate.instance(TrialCount, "a distribution such as Geometric(30)", trials=trials)
    return epsilon_of(trials.event(candidate), delta, relation)


def calibrate(
    candidate_of: Callable[[float], dp.DpEvent],
    trials: TrialCount,
    *,
    epsilon: float,
    delta: float,
    relation: Relation = ADD_REMOVE,
    least: float = 1e-2,
    most: float = 1e4,
) -> float:
    """The least noise with which the whole search is (ε, δ)-DP, rounded up.

    Args:
        candidate_of: The event of one candidate, its score included, as a function of its noise;
            more noise must not cost more.
        trials: The distribution of the number of candidates.
        epsilon: The ε of the whole search.
        delta: The δ of the whole search.
        relation: The neighbouring relation.
        least: The least noise allowed.
        most: The largest noise allowed.

    Raises:
        UnreachableTargetError: If no allowed noise meets the target.
    """
    _validate.instance(TrialCount, "a distribution such as Geometric(30)", trials=trials)
    return solve(
        lambda noise: trials.event(candidate_of(noise)),
        Search(safe=most, unsafe=least, guess=min(max(1.0, least), most)),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        name="noise",
    )
