"""`prudent doctor` sees what is there, and calls a wrong price wrong."""

import json
from typing import Any

import pytest

from prudent.accounting import Run
from tests.cli.conftest import prudent


def findings(*flags: str) -> tuple[int, dict[str, dict[str, str]]]:
    answer = prudent("doctor", "--json", *flags)
    assert answer.err == ""
    found = json.loads(answer.out)
    assert found["right"] is (answer.status == 0)
    return answer.status, {each["part"]: each for each in found["findings"]}


@pytest.mark.unhurried
def test_a_healthy_installation() -> None:
    status, found = findings()
    assert status == 0
    for part in ("prudent", "core packages", "price, one Gaussian"):
        assert found[part]["state"] == "ok"


@pytest.mark.unhurried
def test_a_wrong_price_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Run.epsilon

    def cheaper(self: Run, *given: Any, **named: Any) -> float:
        return 0.99 * right(self, *given, **named)

    monkeypatch.setattr(Run, "epsilon", cheaper)
    status, found = findings("--quiet")
    assert status == 1
    assert set(found) == {"price, 8,000 tested steps", "price, one Gaussian"}


@pytest.mark.unhurried
def test_an_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise RuntimeError("no arithmetic")

    monkeypatch.setattr(Run, "epsilon", broken)
    status, found = findings("--quiet")
    assert status == 1
    assert "no arithmetic" in found["prices"]["seen"]
