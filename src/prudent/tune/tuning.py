"""The search: draw, charge, run, release the best."""

import json
import math
import multiprocessing
import pickle
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._files import check_writable, replacing
from prudent._formats import check_format
from prudent._locking import held
from prudent._rounding import exact, nearest, rounded_up
from prudent._validate import ArgumentError
from prudent.accounting.chargeable import check_ledger
from prudent.accounting.relations import Relation
from prudent.accounting.serialisation import to_json
from prudent.accounting.trial_counts import TrialCount
from prudent.tune.candidate import Candidate, attempt, forget_files, outcome, parsed
from prudent.tune.pricing import epsilon_of_json, price
from prudent.tune.space import Setting, Space, draw_count, draw_setting

FORMAT = 1
"""Of the secret state of a search. A change that earlier versions would misread raises it."""

_STATE, _RESULT, _BEST, _CANDIDATES = "secret.json", "result.json", "best", "candidates"
_STATE_KINDS = {"format": int, "name": str, "event": dict, "settings": list}
_RESULT_KINDS = {
    "format": int,
    "event": dict,
    "setting": (dict, NoneType),
    "score": (int, float),
    "failed": bool,
}


@attrs.frozen
class Tuned:
    """The best candidate of a search, and the price of the whole search.

    Attributes:
        setting: The setting of the best candidate; None if the number of candidates was 0.
        score: Its score; minus infinity if it failed.
        value: What else it released.
        failed: Whether the best candidate failed, that is, whether all did. Why is in the folder
            `best` of the run, in error.txt, which is as secret as the data.
        folder: The files of the best candidate; None without `out`.
        trials: The law of the number of candidates. The number itself is not released.
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
    resume: bool = False,
    workers: int = 1,
) -> Tuned:
    """Run a random number of candidates from a search space and release the best one.

    Args:
        candidate: The mechanism with its event.
        space: The search space: a function that calls the methods of a `Trial`. It must not depend
            on the data.
        trials: The law of the number of candidates, such as `Geometric(30)`.
        delta: The δ at which the search is priced.
        epsilon: The largest ε allowed; a search that costs more is not begun. None: no limit.
        ledger: A `prudent.Ledger` that is charged for the whole search before the first candidate.
            Candidates must not charge it themselves.
        out: Folder of the search. Until it ends, it holds the number of candidates, their settings
            and outputs, and is as secret as the data; afterwards it holds the result and the files
            of the best candidate.
        resume: Continue the search in `out`: with the number and the settings that were drawn, and
            without charging the ledger again. If it has ended, its result is returned.
        workers: The number of processes that run candidates side by side. With more than one the
            candidate must be picklable, and all of them use the same devices.

    Returns:
        The best candidate. Ties go to the candidate that was drawn first.

    Guarantee:
        The result is (ε, δ)-DP for ε = `Tuned.epsilon`, if each candidate has the declared event
        and nobody but the owner of the data learns anything else, such as the running time.
        The number of candidates and all settings are drawn before any data are read.
    """
    _validate.instance(Candidate, "a prudent.tune.Candidate", candidate=candidate)
    _validate.function(space=space)
    _validate.instance(TrialCount, "a law such as Geometric(30)", trials=trials)
    delta = _validate.between(0, 1, ends="[)", delta=delta)
    workers = _validate.count(1, workers=workers)
    resume = _validate.flag(resume=resume)
    if resume and out is None:
        raise ArgumentError("out", "the folder of the search to resume", got=None)
    relation, event = candidate.relation, trials.event(candidate.event)
    total = price(candidate.event, trials, delta, relation)
    _check_price(total, epsilon, delta)
    if ledger is not None:
        check_ledger(ledger, relation, who="the candidate")
    if workers > 1:
        _check_picklable(candidate)
    folder = None if out is None else _validate.path(out=out)
    with ExitStack() as stack:
        place = stack.enter_context(_place(folder))
        state = _opened(place, candidate, space, trials, event, resume=resume)
        if not (place / _RESULT).exists():
            if ledger is not None:
                _charge(ledger, event, state["name"], delta, resumed=resume)
            _run_all(candidate, state["settings"], place, workers)
            _keep_best(place, state["settings"])
        _erase(place)
        best = _read(place / _RESULT, _RESULT_KINDS)
        assert best is not None
        value = best["value"]
        if candidate.load is not None and best["setting"] is not None and not best["failed"]:
            value = candidate.load(best["setting"], place / _BEST)
        return Tuned(
            setting=best["setting"],
            score=float(best["score"]),
            value=value,
            failed=best["failed"],
            folder=None if folder is None or best["setting"] is None else folder / _BEST,
            trials=trials,
            event=event,
            epsilon=total,
            candidate_epsilon=epsilon_of_json(to_json(candidate.event), delta, relation),
            delta=delta,
            relation=relation,
        )


def _check_price(total: float, epsilon: float | None, delta: float) -> None:
    if epsilon is None:
        return
    _validate.positive(epsilon=epsilon)
    if total > epsilon:
        raise ArgumentError(
            "epsilon",
            f">= {rounded_up(total, 4)}, the price of the search at delta = {exact(delta)}",
            got=epsilon,
            hint="Give candidates more noise (prudent.tune.calibrate finds how much) or expect "
            "fewer of them.",
        )


def _check_picklable(candidate: Candidate) -> None:
    try:
        pickle.dumps(candidate.run)
    except Exception as error:
        raise ArgumentError(
            "candidate",
            "with a picklable run for several workers",
            shown=type(error).__name__,
            hint="Define it at the top of a module, or use one worker.",
        ) from error


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    """The folder of a search, locked against others; a temporary one if none is given."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="prudent-tune-") as name:
            yield Path(name)
        return
    check_writable(folder)
    with held(folder):
        yield folder


def _opened(
    place: Path,
    candidate: Candidate,
    space: Space,
    trials: TrialCount,
    event: dp.DpEvent,
    *,
    resume: bool,
) -> dict[str, Any]:
    """The secret state of a search: as it was kept, or drawn anew and kept."""
    kept = _read(place / _STATE, _STATE_KINDS) or _read(place / _RESULT, _RESULT_KINDS)
    if kept is not None:
        if not resume:
            raise ArgumentError(
                "out",
                "a folder without a search",
                got=str(place),
                hint="Continue that search with resume=True, or choose another folder.",
            )
        if kept["event"] != json.loads(to_json(event)):
            raise ArgumentError(
                "out",
                "the folder of a search with the same event",
                got=str(place),
                hint="A search is resumed with the candidates and trials that it was begun with.",
            )
        return kept
    settings = [draw_setting(space) for _ in range(draw_count(trials))]
    if candidate.check is not None:
        # A setting that exists only where the number of candidates is large must not show.
        for setting in settings or [draw_setting(space)]:
            candidate.check(setting)
    state = {
        "format": FORMAT,
        "name": secrets.token_hex(8),
        "event": json.loads(to_json(event)),
        "settings": settings,
    }
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "space",
            "with values made of numbers, strings, lists and dictionaries",
            shown=type(error).__name__,
            hint="Draw a name, and look up in run what it stands for.",
        ) from error
    with replacing(place / _STATE, owner_only=True) as file:
        file.write(text)
    return json.loads(text)  # type: ignore[no-any-return]  # as it will be after a kill


def _read(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = parsed(path, kinds)
    if kept is not None:
        check_format(kept, FORMAT, "the state of a search")
    return kept


def _charge(ledger: Any, event: dp.DpEvent, name: str, delta: float, *, resumed: bool) -> None:
    """Charge the whole search once; a resumed one is recognised by its random name."""
    label = f"tuning run {name}"
    if resumed and any(charge.label == label for charge in ledger.history()):
        return
    ledger.charge(event, label, delta=delta)


def _run_all(candidate: Candidate, settings: list[Setting], place: Path, workers: int) -> None:
    folders = [place / _CANDIDATES / f"{index:06d}" for index in range(len(settings))]
    over = [index for index, folder in enumerate(folders) if outcome(folder) is not None]
    waiting = sorted(set(range(len(folders))) - set(over))
    best = _prune(folders, over)
    if workers == 1:
        for index in waiting:
            attempt(candidate.run, settings[index], folders[index])
            best = _prune(folders, [*best, index])
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        tasks = {
            pool.submit(attempt, candidate.run, settings[index], folders[index]): index
            for index in waiting
        }
        for task in as_completed(tasks):
            task.result()
            best = _prune(folders, [*best, tasks[task]])


def _best_of(folders: list[Path]) -> tuple[int, dict[str, Any]] | None:
    """The best candidate that has ended: the first of those with the largest score."""
    ended = [(index, outcome(folder)) for index, folder in enumerate(folders)]
    known = [(index, found) for index, found in ended if found is not None]
    return max(known, key=lambda one: (one[1]["score"], -one[0]), default=None)


def _prune(folders: list[Path], ended: list[int]) -> list[int]:
    """The best of some candidates; the files of the others are deleted, because models are large.

    Reading only those that may still be the best keeps a search of many candidates linear.
    """
    ended = sorted(ended)  # ties go to the candidate drawn first, whichever ended first
    best = _best_of([folders[index] for index in ended])
    if best is None:
        return []
    for place, index in enumerate(ended):
        if place != best[0]:
            forget_files(folders[index])
    return [ended[best[0]]]


def _keep_best(place: Path, settings: list[Setting]) -> None:
    """Copy the best candidate's files and write the result."""
    folders = [place / _CANDIDATES / f"{index:06d}" for index in range(len(settings))]
    best = _best_of(folders)
    result: dict[str, Any] = {"setting": None, "score": -math.inf, "value": None, "failed": False}
    if best is not None:
        result = {"setting": settings[best[0]], **best[1]}
        shutil.copytree(
            folders[best[0]],
            place / _BEST,
            dirs_exist_ok=True,
            ignore=lambda _, names: [name for name in names if name == "score.json"],
        )
    event = json.loads((place / _STATE).read_text(encoding="utf-8"))["event"]
    with replacing(place / _RESULT) as file:
        json.dump({"format": FORMAT, "event": event, **result}, file)


def _erase(place: Path) -> None:
    """Delete the number of candidates, their settings and the others' outputs."""
    shutil.rmtree(place / _CANDIDATES, ignore_errors=True)
    (place / _STATE).unlink(missing_ok=True)
