"""The definitions that the theorems are about, run beside the Python that ships.

`make proofs` extracts them from Coq and compiles them to a program that answers one question per
line. Each comparison below takes the Python function as an argument, so that a second test can hand
it a faulty one and see it rejected.
"""

import itertools
import math
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prudent.accounting import DiscreteLaplaceTest, ProposeTestReleaseDpEvent
from prudent.accounting.losses.domination import branch_pair, case_one, margin_pair
from prudent.accounting.losses.pairs import Dominating, MixturePair
from prudent.certify.counts import STEPS, UNTOUCHABLE, Counts, decided, moves_of, scores_of
from prudent.release.exponential.measure import UniformMeasure
from prudent.release.exponential.quantile import ExponentialQuantile, NearTarget
from prudent.release.lattice import Lattice
from prudent.release.margins import interquartile_range, quantile
from tests.oracles.array_column import ArrayColumn

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "proofs" / "extracted"
pytestmark = pytest.mark.skipif(
    os.environ.get("PRUDENT_TEST_PROOFS") != "1", reason="needs Coq and OCaml; run by `make proofs`"
)

CAP = 9
ENDS = 0, 12
GRID = Lattice(0, *ENDS)


def written(value: Any) -> str:
    """A value as the program reads it: binary numbers, lists in parentheses."""
    match value:
        case Fraction():
            return written([value.numerator, value.denominator])
        case list() | tuple():
            return f"( {' '.join(map(written, value))} )"
        case _:
            return format(int(value), "b")


def answers(questions: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What the extracted definitions answer."""
    lines = [f"{name} {' '.join(map(written, rest))}" for name, *rest in questions]
    done = subprocess.run(
        [PROGRAM], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    found = [parsed(line) for line in done.stdout.splitlines()]
    assert len(found) == len(questions)
    return found


def parsed(line: str) -> Any:
    """One line of answers."""
    stack: list[list[Any]] = [[]]
    for word in line.split():
        if word == "(":
            stack.append([])
        elif word == ")":
            inner = stack.pop()
            stack[-1].append(inner)
        else:
            stack[-1].append(int(word, 2))
    return stack[0][0]


def compare(
    cases: Sequence[Any],
    ask: Callable[[Any], tuple[Any, ...]],
    shipped: Callable[[Any], Any],
    close: bool = False,
) -> None:
    """Assert that both sides answer alike: exactly, or (floats) to 11 digits."""
    for case, proved in zip(cases, answers([ask(case) for case in cases]), strict=True):
        if close:
            exact = Fraction(*proved)
            assert math.isclose(shipped(case), exact, rel_tol=1e-11, abs_tol=1e-13), case
        else:
            assert shipped(case) == proved, case


# Certificates by counts.


def tables() -> list[tuple[list[int], list[int], list[list[int]], list[int]]]:
    """Sizes of tables, weights, cells of each class (noisy: of either sign) and totals."""
    draw, found = random.Random(1), []
    for _ in range(1000):
        sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
        top = draw.choice([1, STEPS])
        weights = [draw.choice([0, STEPS, draw.randint(0, top)]) for _ in range(sum(sizes))]
        classes = draw.randint(1, 4)
        cells = [[draw.randint(-3, 30) for _ in weights] for _ in range(classes)]
        found.append((sizes, weights, cells, [draw.randint(-2, 40) for _ in range(classes)]))
    return found


def shipped_scores(case: Any) -> Any:
    sizes, weights, cells, totals = case
    row = np.array([weights], np.float32)
    return scores_of(row, np.array(cells), np.array(totals), len(sizes))[0].tolist()


def asked_scores(case: Any) -> tuple[Any, ...]:
    sizes, weights, cells, totals = case
    return "scores", STEPS, len(sizes), weights, list(zip(cells, totals, strict=True))


def shipped_moves(case: Any) -> Any:
    sizes, weights, *_ = case
    return int(moves_of(np.array([weights], np.float32), sizes)[0])


def asked_moves(case: Any) -> tuple[Any, ...]:
    return "moves", STEPS, case[1], case[0]


def votes() -> list[tuple[int, list[int]]]:
    draw = random.Random(2)
    return [
        (draw.choice([0, 1, 2, 5]), [draw.randint(-9, 9) for _ in range(draw.randint(1, 5))])
        for _ in range(2000)
    ]


def shipped_radius(case: tuple[int, list[int]]) -> Any:
    winners, radii = decided(np.array([case[1]]), np.array([case[0]]))
    return [int(winners[0]), [] if radii[0] == UNTOUCHABLE else [int(radii[0])]]


def asked_radius(case: tuple[int, list[int]]) -> tuple[Any, ...]:
    return "decide", *case


def records() -> list[tuple[list[int], Any]]:
    draw, found = random.Random(3), []
    for _ in range(500):
        sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        places = [start + draw.randrange(n) for start, n in zip(starts, sizes, strict=True)]
        found.append((sizes, (draw.randrange(3), places)))
    return found


def shipped_insert(case: Any) -> Any:
    sizes, (name, places) = case
    counts = Counts.empty(3, tuple(sizes), "")
    counts.insert(np.array([places]), np.array([name]))
    return [[row, n] for row, n in zip(counts.cells.tolist(), counts.totals.tolist(), strict=True)]


def asked_insert(case: Any) -> tuple[Any, ...]:
    sizes, (name, places) = case
    return "insert", [([0] * sum(sizes), 0)] * 3, name, places, 1


# Margins.


def columns() -> list[tuple[Fraction, int, list[int]]]:
    draw = random.Random(5)
    ps = [Fraction(p) for p in ("1/10", "1/4", "1/3", "1/2", "3/4", "9/10", "1")]
    return [
        (
            draw.choice(ps),
            draw.randint(0, 13),
            [draw.choice([*ENDS, draw.randint(*ENDS)]) for _ in range(draw.randint(0, 12))],
        )
        for _ in range(3000)
    ]


def shipped_quantile(case: Any) -> Any:
    p, tau, values = case
    return quantile(ArrayColumn(values), GRID, p, propose=tau, cap=CAP).value[0]


def asked_quantile(case: Any) -> tuple[Any, ...]:
    p, _, values = case
    return "quantile", 0, p.numerator, p.denominator, values


def shipped_margin(case: Any) -> Any:
    p, tau, values = case
    return quantile(ArrayColumn(values), GRID, p, propose=tau, cap=CAP).margin


def asked_margin(case: Any) -> tuple[Any, ...]:
    p, tau, values = case
    return "quantile_margin", *ENDS, p.numerator, p.denominator, tau, CAP, values


def shipped_range(case: Any) -> Any:
    return interquartile_range(ArrayColumn(case[2]), GRID, propose=case[1], cap=CAP).value[0]


def asked_range(case: Any) -> tuple[Any, ...]:
    return "interquartile_range", 0, case[2]


# The exponential mechanism.


def shipped_distances(case: Any) -> Any:
    """The distance of every value, from the pieces of equal distance that are drawn from."""
    p, _, values = case
    return distances_of(NearTarget.read(ArrayColumn(values), UniformMeasure(GRID), p, reach=99))


def distances_of(window: NearTarget) -> list[int]:
    starts, distances = window.pieces(ENDS[0])
    last = {start: place for place, start in enumerate(starts)}  # of several, the others are empty
    found, place = [], 0
    for value in range(ENDS[0], ENDS[1] + 1):
        place = last.get(value, place)
        found.append(distances[place])
    return found


def asked_distances(case: Any) -> tuple[Any, ...]:
    p, _, values = case
    return "distances", p.numerator, p.denominator, values, range_of(ENDS)


def range_of(ends: tuple[int, int]) -> list[int]:
    return list(range(ends[0], ends[1] + 1))


def shipped_spread(p: Fraction) -> Any:
    return ExponentialQuantile(p, 1.0).spread * p.denominator


def asked_spread(p: Fraction) -> tuple[Any, ...]:
    return "spread", p.numerator, p.denominator


# Tests, thresholds and profiles.


def decays() -> list[tuple[Fraction, Fraction]]:
    """q = e^(-1/b), and a failure that no tail equals: 10007 is prime."""
    draw = random.Random(6)
    return [
        (Fraction(draw.randint(1, 14), 16), Fraction(draw.randint(1, 5003), 10007))
        for _ in range(500)
    ]


def of_decay(q: Fraction) -> DiscreteLaplaceTest:
    return DiscreteLaplaceTest(-1 / math.log(q))


def shipped_threshold(case: tuple[Fraction, Fraction]) -> Any:
    return of_decay(case[0]).threshold(float(case[1]))


def asked_threshold(case: tuple[Fraction, Fraction]) -> tuple[Any, ...]:
    return "threshold", *case, 200


def tails() -> list[tuple[Fraction, int]]:
    draw = random.Random(7)
    return [(Fraction(draw.randint(1, 14), 16), draw.randint(-12, 12)) for _ in range(1000)]


def shipped_tail(case: tuple[Fraction, int]) -> Any:
    return of_decay(case[0]).tail(case[1])


def asked_tail(case: tuple[Fraction, int]) -> tuple[Any, ...]:
    return "tail", *case


Component = tuple[Fraction, Fraction, bool]


def pairs() -> list[tuple[list[Component], Fraction, Fraction]]:
    """Components (absent, present, whether noise beside the label tells all), a rate and e^ε."""
    draw, found = random.Random(8), []
    for _ in range(800):
        size = draw.randint(2, 5)
        masses = [masses_of(draw, size) for _ in range(2)]
        telling = [draw.random() < 0.2 for _ in range(size)]
        rate = Fraction(draw.randint(1, 8), 8)
        found.append(
            (list(zip(*masses, telling, strict=True)), rate, Fraction(draw.randint(1, 96), 16))
        )
    return found


def masses_of(draw: random.Random, size: int) -> list[Fraction]:
    cuts = sorted([0, 64, *(draw.randint(0, 64) for _ in range(size - 1))])
    return [Fraction(high - low, 64) for low, high in itertools.pairwise(cuts)]


def mixture(components: list[Component]) -> MixturePair:
    return MixturePair.of(*((float(a), float(p), 0.0 if t else math.inf) for a, p, t in components))


def outcomes(components: list[Component]) -> list[tuple[Fraction, Fraction]]:
    zero = Fraction(0)
    return [
        one for a, p, tells in components for one in ([(p, zero), (zero, a)] if tells else [(p, a)])
    ]


def at(profile: Callable[[Any], Any], a: Fraction) -> float:
    return float(profile(np.array([math.log(a)]))[0])


def shipped_profile(case: Any) -> float:
    return at(mixture(case[0]).profile, case[2])


def asked_profile(case: Any) -> tuple[Any, ...]:
    return "profile", outcomes(case[0]), case[2]


def shipped_removing(case: Any) -> float:
    components, rate, a = case
    return at(Dominating((mixture(components),), float(rate)).profile, a)


def asked_removing(case: Any) -> tuple[Any, ...]:
    components, rate, a = case
    return "removing", rate, outcomes(components), a


def shipped_adding(case: Any) -> float:
    components, rate, a = case
    sampled = Dominating((mixture(components),), float(rate))
    return at(lambda epsilon: sampled.profile(epsilon, adding=True), a)


def asked_adding(case: Any) -> tuple[Any, ...]:
    components, rate, a = case
    return "adding", rate, outcomes(components), a


def event_of(q: Fraction, failure: Fraction) -> ProposeTestReleaseDpEvent:
    """A refusing mechanism without bounds: an accident tells all, a refusal nothing."""
    return ProposeTestReleaseDpEvent(math.inf, 0.0, of_decay(q), float(failure), 1.0)


def steps() -> list[tuple[Fraction, Fraction, int, int, bool]]:
    draw = random.Random(9)
    return [
        (q, failure, draw.randint(0, 8), draw.randint(-1, 1), draw.random() < 0.5)
        for q, failure in decays()
    ]


def masses(pair: MixturePair, tells: bool) -> list[Any]:
    """Masses (present, absent) of each outcome, as the proof lists them."""
    (a, b), (c, d) = pair.present, pair.absent
    return [[a, c], *([[b, 0.0], [0.0, d]] if tells else [[b, d]])]


def check_pairs(cases: Sequence[Any], asked: Any, shipped: Callable[[Any], list[Any]]) -> None:
    for case, proved in zip(cases, answers([asked(case) for case in cases]), strict=True):
        exact = [[float(Fraction(*mass)) for mass in pair] for pair in proved]
        np.testing.assert_allclose(shipped(case), exact, rtol=1e-11, atol=1e-15, err_msg=str(case))


def shipped_branch(case: Any) -> list[Any]:
    q, failure, margin, change, tells = case
    pair = branch_pair(event_of(q, failure), absent=margin + 1, present=margin + 1 + change)
    return masses(pair, tells)


def asked_branch(case: Any) -> tuple[Any, ...]:
    q, failure, margin, change, tells = case
    threshold = int(of_decay(q).threshold(float(failure)))
    return "branch_pair", q, threshold, margin + 1 + change, margin + 1, False, tells


def shipped_accident(case: Any) -> list[Any]:
    pair = case_one(event_of(case[0], case[1]))
    assert pair.sigma.tolist() == [math.inf, 0.0]
    return masses(pair, tells=True)


def asked_accident(case: Any) -> tuple[Any, ...]:
    return "case_one", case[0], int(of_decay(case[0]).threshold(float(case[1]))), False, True


def shipped_response(case: Any) -> list[Any]:
    pair = margin_pair(of_decay(case[0]), math.inf)
    assert isinstance(pair, MixturePair)
    return [list(one) for one in zip(pair.present, pair.absent, strict=True)]


def asked_response(case: Any) -> tuple[Any, ...]:
    return "response", case[0]


EXACT = {
    "scores": (tables, asked_scores, shipped_scores),
    "moves": (tables, asked_moves, shipped_moves),
    "radius": (votes, asked_radius, shipped_radius),
    "insert": (records, asked_insert, shipped_insert),
    "quantile": (columns, asked_quantile, shipped_quantile),
    "margin of a quantile": (columns, asked_margin, shipped_margin),
    "interquartile range": (columns, asked_range, shipped_range),
    "distances": (columns, asked_distances, shipped_distances),
    "threshold": (decays, asked_threshold, shipped_threshold),
}
CLOSE = {
    "tail": (tails, asked_tail, shipped_tail),
    "profile": (pairs, asked_profile, shipped_profile),
    "removing": (pairs, asked_removing, shipped_removing),
    "adding": (pairs, asked_adding, shipped_adding),
}
PAIRS = {
    "branch": (steps, asked_branch, shipped_branch),
    "accident": (decays, asked_accident, shipped_accident),
    "response": (decays, asked_response, shipped_response),
}


@pytest.mark.parametrize("name", EXACT)
def test_whole_numbers_agree(name: str) -> None:
    cases, asked, shipped = EXACT[name]
    compare(cases(), asked, shipped)


@pytest.mark.parametrize("name", CLOSE)
def test_profiles_agree(name: str) -> None:
    cases, asked, shipped = CLOSE[name]
    compare(cases(), asked, shipped, close=True)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_agree(name: str) -> None:
    cases, asked, shipped = PAIRS[name]
    check_pairs(cases(), asked, shipped)


def test_spreads_agree() -> None:
    ps = [Fraction(n, d) for d in range(2, 12) for n in range(1, d)]
    compare(ps, asked_spread, shipped_spread)


def test_the_step_of_training_agrees() -> None:
    """Its margin, and which records it keeps: ties by the record's place."""
    torch = pytest.importorskip("torch")
    from prudent.training.aggregation import ProposeTestRelease, keep_smallest
    from prudent.training.noise import margin_noise

    test = DiscreteLaplaceTest(1.0)
    rule = ProposeTestRelease(clip=4.0, propose=0.5, noise_multiplier=1.0, test=test)
    draw, here = random.Random(10), torch.ones(9, dtype=bool)
    cases = [(draw.randint(0, 5), [draw.randint(0, 4) for _ in range(9)]) for _ in range(300)]
    rows = [[[norm, place] for place, norm in enumerate(norms)] for _, norms in cases]
    asked = [(trim, row) for (trim, _), row in zip(cases, rows, strict=True)]
    kept = answers([("whole_kept", trim, row) for trim, row in asked])
    margins = answers([("whole_margin", trim, Fraction(2), row) for trim, row in asked])
    for (trim, numbers), places, margin in zip(cases, kept, margins, strict=True):
        norms, count = (
            torch.tensor(numbers, dtype=torch.float32),
            torch.tensor(float(trim)).double(),
        )
        mask = keep_smallest(norms, here, count)
        assert sorted(place for _, place in places) == torch.nonzero(mask).ravel().tolist()
        words = torch.tensor([draw.getrandbits(62), draw.getrandbits(62)])
        noisy = rule.decide(norms, here, count, words).noisy_margin
        assert float(noisy - margin_noise(test, words)) == margin


def off_by_one(shipped: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A fault in one case of a hundred: its first number is one more."""
    calls = iter(range(10**9))

    def more(answer: Any) -> Any:
        return [more(answer[0]), *answer[1:]] if isinstance(answer, list) else answer + 1

    return lambda case: more(shipped(case)) if next(calls) % 100 == 99 else shipped(case)


@pytest.mark.parametrize("name", [*EXACT, *CLOSE, *PAIRS])
def test_a_fault_in_a_case_of_a_hundred_is_seen(name: str) -> None:
    cases, asked, shipped = (EXACT | CLOSE | PAIRS)[name]
    check = check_pairs if name in PAIRS else partial(compare, close=name in CLOSE)
    with pytest.raises(AssertionError):
        check(cases(), asked, off_by_one(shipped))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda case: max(0, shipped_margin(case) - 1), "margin of a quantile"),
        (lambda case: shipped_margin((case[0], case[1] + 1, case[2])), "margin of a quantile"),
        (lambda case: shipped_radius((case[0] + 1, case[1])), "radius"),
    ],
    ids=["a margin of one less", "another proposal", "a wider move"],
)
def test_a_likely_fault_is_seen(wrong: Callable[[Any], Any], name: str) -> None:
    cases, asked, _ = EXACT[name]
    with pytest.raises(AssertionError):
        compare(cases(), asked, wrong)
