"""What a candidate is: its setting, drawn without the data; its run; and the folder of a search.

The number of candidates is secret. While the search runs, everything that depends on it lies in one
folder that only its owner may open; a folder in between hides how many there are from whoever may
list the folder of the search. What is left afterwards are the result and the files of the best
candidate, with the time at which the search was begun: the times at which candidates ended would
tell how many there were.
"""

import builtins
import json
import math
import multiprocessing
import numbers
import os
import secrets
import shutil
import signal
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal, localcontext
from multiprocessing.connection import wait
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import attrs
import dp_accounting as dp

from prudent import _extras, _validate
from prudent._files import check_writable, held, replacing
from prudent._formats import check_format, reading
from prudent._validate import ArgumentError
from prudent._warning import warn
from prudent.accounting.events import DiscreteGaussianTest, DiscreteLaplaceTest, WorstOfDpEvent
from prudent.accounting.losses.repeated_selection import (
    Binomial,
    NegativeBinomial,
    Poisson,
    TrialCount,
)
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation

Setting: TypeAlias = Mapping[str, Any]
"""The values of one candidate, by name."""

_DIGITS = 100  # of probabilities; what is drawn differs from the exact ones by less than 1e-70
_BITS = 256  # of the uniform number that decides
_NOTHING_LEFT = Decimal(10) ** -90

T = TypeVar("T")


class Trial:
    """Draws the values of one candidate. A search space calls its methods, with public arguments.

    All draws come from the operating system's generator: whoever could predict them would know how
    many candidates there are.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, Any] = {}

    @property
    def setting(self) -> dict[str, Any]:
        """The values drawn so far, by name."""
        return dict(self._drawn)

    def float(
        self, name: str, low: builtins.float, high: builtins.float, *, log: bool = False
    ) -> builtins.float:
        """Draw a number from [low, high], uniformly or uniformly in its logarithm.

        Args:
            name: What the number is for; each name is drawn once.
            low: The least value.
            high: The largest value.
            log: Whether the logarithm is uniform; then `low` must be positive.
        """
        low = _validate.positive(low=low) if log else _validate.real(low=low)
        if _validate.real(high=high) < low:
            raise ArgumentError("high", f">= {low:g}", got=high)
        share = secrets.randbits(53) / 2**53
        if log:
            drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            drawn = low + share * (high - low)
        return self._keep(name, min(max(drawn, low), builtins.float(high)))

    def int(self, name: str, low: builtins.int, high: builtins.int) -> builtins.int:
        """Draw a whole number from low, …, high, each with the same probability."""
        ends: dict[str, Any] = {"low": low, "high": high}
        for end, value in ends.items():
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise ArgumentError(end, "a whole number", got=value)
        low, high = int(low), int(high)
        if high < low:
            raise ArgumentError("high", f">= {low}", got=high)
        return self._keep(name, low + secrets.randbelow(high - low + 1))

    def choice(self, name: str, options: Sequence[T]) -> T:
        """Draw one of several values, each with the same probability."""
        values = list(_validate.values(options=options))
        if not values:
            raise ArgumentError("options", "with at least one entry", shown="none")
        chosen: T = values[secrets.randbelow(len(values))]
        return self._keep(name, chosen)

    def _keep(self, name: str, value: T) -> T:
        _validate.instance(str, "a text", name=name)
        if name in self._drawn:
            raise ArgumentError("name", "one that is drawn once", got=name)
        self._drawn[name] = value
        return value


Space: TypeAlias = Callable[[Trial], object]
"""A search space: calls the methods of a `Trial`; what it returns is ignored."""


def draw_setting(space: Space) -> dict[str, Any]:
    """One setting of a search space."""
    trial = Trial()
    space(trial)
    return trial.setting


def draw_count(count: TrialCount) -> int:
    """A number of candidates, from the operating system's generator."""
    with localcontext() as context:
        context.prec = _DIGITS
        threshold = Decimal(secrets.randbits(_BITS)) / Decimal(2**_BITS)
        total = Decimal(0)
        number = 0
        for number, mass in enumerate(probabilities(count)):
            total += mass
            if total > threshold or (mass < _NOTHING_LEFT and number > count.expected):
                return number
        return number


def probabilities(count: TrialCount) -> Iterator[Decimal]:
    """Pr[K = 0], Pr[K = 1], …, each computed from the one before."""
    match count:
        case NegativeBinomial():
            yield Decimal(0)
            yield from _negative_binomial(Decimal(count.halting), Decimal(count.shape))
        case Poisson():
            mean = Decimal(count.mean)
            mass, number = (-mean).exp(), 0
            while True:
                yield mass
                number += 1
                mass = mass * mean / number
        case Binomial(draws=draws):
            chance = Decimal(count.probability)
            if chance == 1:
                yield from [Decimal(0)] * draws
                yield Decimal(1)
                return
            mass = (1 - chance) ** draws
            for number in range(draws + 1):
                yield mass
                mass = mass * (draws - number) / (number + 1) * chance / (1 - chance)
        case _:
            raise ArgumentError("trials", "a distribution of prudent.tune", got=count)


def _negative_binomial(gamma: Decimal, shape: Decimal) -> Iterator[Decimal]:
    rest = 1 - gamma
    if rest == 0:
        mass = Decimal(1)
    elif shape == 0:
        mass = -rest / gamma.ln()
    else:
        mass = shape * rest / ((-shape * gamma.ln()).exp() - 1)
    number = 1
    while True:
        yield mass
        mass = mass * rest * (number + shape) / (number + 1)
        number += 1


SCORE = "score.json"
"""The file with the score and the value of a candidate."""
Job = tuple[int, Setting, Path]
"""The number, the setting and the folder of a candidate."""


FORMAT = 1
"""Of the secret state of a search and of its result."""

_LATEST = 2**33  # the largest time that every file system keeps, or nearly so

_STATE_KINDS = {
    "format": int,
    "name": str,
    "event": dict,
    "candidate": str,
    "begun": int,
    "settings": list,
}
_RESULT_KINDS = {
    "format": int,
    "event": dict,
    "begun": int,
    "setting": (dict, NoneType),
    "score": (int, float),
    "failed": bool,
}


@attrs.frozen
class Scored:
    """The output of one candidate.

    Attributes:
        score: The larger, the better. NaN counts as the worst.
        value: Anything else that is released with it, made of numbers, strings, lists and
            dictionaries. Files belong into the candidate's folder.
    """

    score: float
    value: Any = None


Run: TypeAlias = Callable[[Setting, Path], Scored | float]
"""Runs one candidate, with its setting and a folder of its own; returns its score."""


@attrs.frozen
class Candidate:
    """A mechanism with a setting to choose.

    Attributes:
        run: Runs it. What it returns and what it writes to the folder is released if it is the
            best. After a kill it is called again with the same setting and folder.
        event: The privacy event of one run, **including its score**: a score computed from private
            records must be private itself, and its event is composed with that of the mechanism. A
            score computed from public records is post-processing and costs nothing. If settings
            change the event, this is a `WorstOfDpEvent` of all events that occur.
        relation: The neighbouring relation that the event is priced for.
        load: Makes the released value of the best candidate's setting and folder; None: the value
            that `run` returned.
        check: Raises an error for a setting whose run would not have the event. Called for all
            settings before anything is charged.
    """

    run: Run
    event: dp.DpEvent
    relation: Relation = ADD_REMOVE
    load: Callable[[Setting, Path], Any] | None = None
    check: Callable[[Setting], object] | None = None

    def __attrs_post_init__(self) -> None:
        _validate.function(run=self.run)
        _validate.instance(dp.DpEvent, "a DpEvent", event=self.event)
        check_relation(relation=self.relation)


ScoreNoise: TypeAlias = DiscreteLaplaceTest | DiscreteGaussianTest
"""The noise of a score, in records."""


def check_score_noise(**argument: Any) -> None:
    """Raise an error unless the noise of a score is drawn exactly; None is for public records."""
    ((name, noise),) = argument.items()
    if not isinstance(noise, ScoreNoise | None):
        raise ArgumentError(
            name,
            "DiscreteLaplaceTest(scale), DiscreteGaussianTest(scale), or None for public data",
            got=noise,
        )
    if noise is not None:
        _extras.require("The noise of a score", "opendp")


def scored_event(
    events: Sequence[dp.DpEvent], noise: ScoreNoise | None, *, disjoint: bool
) -> dp.DpEvent:
    """The event of a candidate, the worst of some, and of its score; people may be in one alone."""
    made = events[0] if len(events) == 1 else WorstOfDpEvent(events)
    if noise is None:
        return made
    return WorstOfDpEvent([made, noise]) if disjoint else dp.ComposedDpEvent([made, noise])


def attempt(run: Run, setting: Setting, folder: Path) -> None:
    """Run a candidate and keep its score and value in its folder.

    A candidate that fails has the worst score, whatever the reason: one odd record must not end
    the search. An error may quote records, so nothing is kept of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    value = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they may tell of a candidate that is not released
            scored = run(setting, folder)
        score = float(scored.score if isinstance(scored, Scored) else scored)
        value = scored.value if isinstance(scored, Scored) else None
        json.dumps(value, allow_nan=True)
    except KeyboardInterrupt:  # whoever runs the search wants to stop it
        raise KeyboardInterrupt from None  # without notes, which are of this candidate alone
    except BaseException:  # SystemExit, too
        fail(folder)
        return
    if math.isnan(score):
        score = -math.inf
    _keep(folder, score, value, failed=False)


def fail(folder: Path) -> None:
    """Give a candidate the worst score, and delete what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    forget_files(folder)
    _keep(folder, -math.inf, None, failed=True)


def _keep(folder: Path, score: float, value: Any, *, failed: bool) -> None:
    with replacing(folder / SCORE, owner_only=True) as file:
        json.dump({"score": score, "value": value, "failed": failed}, file)


def outcome(folder: Path) -> dict[str, Any] | None:
    """The score, value and failure of a candidate; None if it has not ended."""
    return parsed(folder / SCORE, {"score": (int, float), "failed": bool})


def parsed(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entries of a file of a search, some of which have known kinds; None without the file."""
    try:
        with reading(path, "a file of a search"):
            entries = json.loads(path.read_text(encoding="utf-8"))
            if not all(isinstance(entries[name], kind) for name, kind in kinds.items()):
                raise TypeError
    except FileNotFoundError:
        return None
    return {"value": None, **entries}


def forget_files(folder: Path) -> None:
    """Delete what a candidate wrote, except its score: it will not be released."""
    for path in folder.iterdir():
        if path.name != SCORE:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def side_by_side(
    run: Run, jobs: Iterable[Job], workers: int, ended: Callable[[int], object]
) -> None:
    """Run each candidate in a process of its own; one whose process dies has the worst score.

    `run` is picklable; `ended` is called with the number of each candidate that has ended.
    """
    context = multiprocessing.get_context("spawn")
    waiting, busy = deque(jobs), dict[Any, Any]()
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                number, setting, folder = waiting.popleft()
                process = context.Process(target=_attempt_alone, args=(run, setting, folder))
                process.start()
                busy[process.sentinel] = number, folder, process
            for sentinel in wait(list(busy)):
                number, folder, process = busy.pop(sentinel)
                process.join()
                if outcome(folder) is None:
                    fail(folder)
                ended(number)
    finally:
        for *_, process in busy.values():
            process.terminate()
            process.join()


def _attempt_alone(run: Run, setting: Setting, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    attempt(run, setting, folder)


class SearchFolder:
    """The files of a search.

    Attributes:
        place: The folder.
        best: The files of the best candidate, once the search has ended.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.best = place, place / "best"
        self._secret, self._result = place / "secret", place / "result.json"
        self._state, self._candidates = self._secret / "state.json", self._secret / "candidates"

    @classmethod
    @contextmanager
    def at(cls, folder: Path | None) -> Iterator["SearchFolder"]:
        """The folder of a search, locked against others; a temporary one if none is given."""
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="prudent-tune-") as name:
                yield cls(Path(name))
            return
        check_writable(folder)
        place = cls(folder)
        with held(folder):
            yield place
        place._set_times()  # not before: the lock, too, is a file that comes and goes

    def opened(self, event: dict[str, Any], known: str, *, resume: bool) -> dict[str, Any] | None:
        """The state or the result of the search in this folder; None if there is none.

        Args:
            event: The event of the search, in plain values.
            known: The fingerprint of the candidate; empty if it has none.
            resume: Whether the search may go on.

        Raises:
            ArgumentError: If it may not, or is another search.
        """
        kept = _read(self._state, _STATE_KINDS)
        kept = kept or _read(self._result, _RESULT_KINDS)
        if kept is None:
            return None
        if not resume:
            raise ArgumentError(
                "out",
                "a folder without a search",
                got=str(self.place),
                hint="Continue that search with resume=True, or choose another folder.",
            )
        if kept["event"] != event:
            raise ArgumentError(
                "out",
                "the folder of a search with the same event",
                got=str(self.place),
                hint="A search is resumed with the candidates and trials that it was begun with.",
            )
        if "candidate" in kept:
            self._check_candidate(kept["candidate"], known)
        return kept

    def _check_candidate(self, before: str, known: str) -> None:
        """Refuse another candidate, and forget the outputs of one that may be another."""
        if before and known and before != known:
            raise ArgumentError(
                "candidate",
                "the one that this search was begun with",
                shown="one with other records, code or settings",
                why="its outputs would be compared with those of the other",
                hint="Start another search, which is charged, in another folder.",
            )
        if not (before and known):
            warn(
                "The search is resumed with the settings that were drawn, and all of its "
                "candidates are run again: they have no fingerprint, so it cannot be proved that "
                "they are what they were."
            )
            shutil.rmtree(self._candidates, ignore_errors=True)

    def begin(
        self, event: dict[str, Any], known: str, settings: Sequence[Setting]
    ) -> dict[str, Any]:
        """Keep the secret state of a new search, and return it."""
        state = {
            "format": FORMAT,
            "name": secrets.token_hex(8),
            "event": event,
            "candidate": known,
            "begun": int(time.time()),
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
        self._secret.mkdir(mode=0o700, exist_ok=True)
        self._secret.chmod(0o700)  # whatever a mask has left of it, or whoever made it
        with replacing(self._state, owner_only=True) as file:
            file.write(text)
        return json.loads(text)  # type: ignore[no-any-return]  # as it will be after a kill

    @property
    def has_ended(self) -> bool:
        """Whether the result is known."""
        return self._result.exists()

    def candidates(self, count: int) -> list[Path]:
        """The folders of the candidates."""
        return [self._candidates / f"{index:06d}" for index in range(count)]

    def keep_best(self, state: Mapping[str, Any]) -> None:
        """Copy the best candidate's files and write the result."""
        folders = self.candidates(len(state["settings"]))
        best = best_of(folders)
        result: dict[str, Any] = {"setting": None, "score": -math.inf, "value": None}
        result["failed"] = False
        if best is not None:
            result = {"setting": state["settings"][best[0]], **best[1]}
            shutil.copytree(
                folders[best[0]],
                self.best,
                dirs_exist_ok=True,
                ignore=lambda _, names: [name for name in names if name == SCORE],
            )
        public = {name: state[name] for name in ("format", "event", "begun")}
        with replacing(self._result) as file:
            json.dump({**public, **result}, file)

    def result(self) -> dict[str, Any]:
        """The result; what is secret is deleted."""
        result = _read(self._result, _RESULT_KINDS)
        assert result is not None
        shutil.rmtree(self._secret, ignore_errors=True)
        return result

    def _set_times(self) -> None:
        """Give all that is left of a search that has ended the time at which it was begun."""
        result = _read(self._result, _RESULT_KINDS)
        if result is None:
            return
        own = [self._result, self.place / "running.lock", self.best, *self.best.rglob("*")]
        begun = min(max(result["begun"], 0), _LATEST)
        for path in (*own, self.place):
            if path.exists() and not path.is_symlink():
                os.utime(path, (begun, begun))


def _read(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = parsed(path, kinds)
    if kept is not None:
        check_format(kept, FORMAT, "the state of a search")
    return kept


def best_of(folders: list[Path]) -> tuple[int, dict[str, Any]] | None:
    """The best candidate that has ended: the first of those with the largest score."""
    ended = [(index, outcome(folder)) for index, folder in enumerate(folders)]
    known = [(index, result) for index, result in ended if result is not None]
    return max(known, key=lambda one: (one[1]["score"], -one[0]), default=None)


def prune(folders: list[Path], ended: list[int]) -> list[int]:
    """The best of some candidates; the files of the others are deleted, because models are large.

    Reading only those that may still be the best keeps a search of many candidates linear.
    """
    ended = sorted(ended)  # ties go to the candidate drawn first, whichever ended first
    best = best_of([folders[index] for index in ended])
    if best is None:
        return []
    for place, index in enumerate(ended):
        if place != best[0]:
            forget_files(folders[index])
    return [ended[best[0]]]
