"""What is printed is true as printed: read back, a bound is still a bound."""

import ast
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent._rounding import exact, nearest, outward, percent, rounded_down, rounded_up, supported

ROOT = Path(__file__).resolve().parents[1]

finite = st.floats(allow_nan=False, allow_infinity=False)
digits = st.integers(1, 8)
wholes = st.integers(-(10**30), 10**30)
decimals = st.decimals(
    allow_nan=False, allow_infinity=False, places=4, min_value=-1e12, max_value=1e12
)


@given(finite, digits)
def test_a_bound_is_never_on_the_wrong_side(value: float, many: int) -> None:
    up, down = rounded_up(value, many), rounded_down(value, many)
    assert float(down) <= value
    assert math.isinf(float(up)) or value <= float(up)
    assert max(len(re.sub(r"e.*|\D", "", text).strip("0")) for text in (up, down)) <= many
    assert float(down) <= float(nearest(value, many)) <= float(up)


@given(finite, st.integers(2, 8))
def test_a_bound_is_near_its_number(value: float, many: int) -> None:
    room = Decimal(10) ** (1 - many) * abs(Decimal(value)) * (1 + Decimal("1e-9"))
    assert abs(Decimal(rounded_up(value, many)) - Decimal(value)) <= room + Decimal("1e-323")


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.1, "0.1", "0.1"),  # as a person wrote it, though the double is a little more
        (1e-7, "1e-07", "1e-07"),
        (1 / 3, "0.33334", "0.33333"),
        (2.98620000001, "2.9863", "2.9862"),
        (-1.000001, "-1", "-1.0001"),
        (51_767_924.0, "51768000", "51767000"),
        (0.0, "0", "0"),
        (-0.0, "0", "0"),
        (math.inf, "∞", "∞"),
        (-math.inf, "-∞", "-∞"),
    ],
)
def test_bounds_by_hand(value: float, up: str, down: str) -> None:
    assert (rounded_up(value), rounded_down(value)) == (up, down)


@given(
    st.one_of(st.lists(finite, min_size=3, max_size=3), st.lists(wholes, min_size=3, max_size=3))
)
def test_an_interval_is_rounded_outward(ends: list[float]) -> None:
    low, value, high = sorted(ends)
    lower, upper = map(Decimal, outward(low, high))
    shown = Decimal(supported(value, low, high))
    low, value, high = (Decimal(repr(each)) for each in (low, value, high))
    assert lower <= low <= high <= upper
    assert lower <= shown <= upper
    if low == high:
        assert lower == low == shown == upper
    else:
        assert upper - lower <= (high - low) * Decimal("1.02")
        assert abs(shown - value) <= (high - low) * Decimal("0.005")


@given(decimals, decimals)
def test_decimals_are_rounded_outward_as_well(one: Decimal, other: Decimal) -> None:
    low, high = sorted((one, other))
    lower, upper = map(Decimal, outward(low, high))
    assert lower <= low <= high <= upper


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (51_767_924.0, 51_767_924.0, ("51767924", "51767924")),
        (51_767_423.9, 51_768_424.1, ("51767420", "51768430")),
        (1_234_566.5, 1_234_567.5, ("1234566.5", "1234567.5")),
        (50_205.4321, 53_277.4321, ("50200", "53280")),
        (-1e-9, 1e-9, ("-1e-09", "1e-09")),
        (-math.inf, 3.0, ("-∞", "3")),
        (0, 60, ("0", "60")),
        ("a", "b", ("a", "b")),
    ],
)
def test_intervals_by_hand(low: object, high: object, shown: tuple[str, str]) -> None:
    assert outward(low, high) == shown


@given(finite)
def test_an_exact_number_is_read_back_as_it_was(value: float) -> None:
    assert float(exact(value)) == value


def test_a_confidence_is_never_rounded_to_certainty() -> None:
    assert [percent(each) for each in (0.95, 0.999, 0.9999999)] == ["95%", "99.9%", "99.99999%"]


# --- one door -------------------------------------------------------------------------------------

# Reports of experiments, whose numbers are measured, and pages that round in another language.
MEASURED = {"certify", "cli/commands/checks.py"}
PRICED = tuple(f"commands/{name}.py" for name in ("certify", "demo", "train", "tune"))  # of the lab
BOUNDS = re.compile(r"[εδμ] ?[=≤≥<>]|-DP|interval|confidence|at least|at most|More than")


def rounded_by_hand(tree: ast.AST) -> list[int]:
    """Lines of f-strings that speak of a bound and round a number to the nearest."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        specifications = [
            "".join(
                str(each.value)
                for each in part.format_spec.values
                if isinstance(each, ast.Constant)
            )
            for part in node.values
            if isinstance(part, ast.FormattedValue) and isinstance(part.format_spec, ast.JoinedStr)
        ]
        if BOUNDS.search(text) and any(each[-1:] in "gfe%" for each in specifications if each):
            found.append(node.lineno)
    return found


@pytest.mark.unhurried
def test_no_sentence_about_a_bound_rounds_to_the_nearest() -> None:
    wrong = []
    core, checker = ROOT / "src/prudent", ROOT / "packages/verify/src"
    lab = [ROOT / "packages/lab/src/prudent_lab" / name for name in PRICED]
    for path in (*sorted(core.rglob("*.py")), *checker.rglob("*.py"), *lab):
        name = path.relative_to(core if core in path.parents else ROOT).as_posix()
        if {name, name.split("/")[0]} & MEASURED:
            continue
        lines = rounded_by_hand(ast.parse(path.read_text(encoding="utf-8")))
        wrong += [f"{name}:{line}" for line in lines]
    assert not wrong


def test_the_search_for_such_sentences_finds_them() -> None:
    assert rounded_by_hand(ast.parse('f"ε = {epsilon:g}"'))
    assert rounded_by_hand(ast.parse('f"95% interval {low:.6g} to {high:.6g}"'))
    assert not rounded_by_hand(ast.parse('f"At least {needed:,} records"'))
