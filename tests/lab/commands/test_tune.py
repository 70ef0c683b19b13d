"""`prudent tune`: one price for the search, shown before it, charged once, and what is released."""

import json
from pathlib import Path

import attrs
import dp_accounting as dp
import pytest
import torch

from prudent.accounting import ZERO_OUT, DiscreteLaplaceTest, Relation, WorstOfDpEvent
from prudent.tune import Geometric, price
from prudent_lab.datasets import held_apart, load, split_of, units
from prudent_lab.search import SettingRange, SettingRanges, SettingSearch, space_of
from prudent_lab.settings import Experiment
from tests.cli.conftest import Answer, prudent

pytestmark = pytest.mark.usefixtures("same_draws")

PLAN = ("--steps=3", "--noise-multiplier=4", "--batch=540", "--search=lr=0.1:1:log")
FIXED = ("--distribution=fixed", "--candidates=2", "--search=clip=0.5,1")


def found(answer: Answer) -> dict[str, object]:
    assert answer.status == 0, answer
    document: dict[str, object] = json.loads(answer.out)
    return document


def wrong(*flags: str) -> str:
    answer = prudent("tune", *flags)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    return answer.err


def test_the_price_is_printed_before_anything_is_read() -> None:
    nowhere = "--dataset=npz:nowhere.npz"
    flags = ("--candidates=5", "--dry-run", "--records=600", nowhere, "--json", "--quiet")
    shown = found(prudent("tune", *PLAN, *flags))
    sampled = dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(4.0))
    event = WorstOfDpEvent([dp.SelfComposedDpEvent(sampled, 3), DiscreteLaplaceTest(10.0)])
    assert shown["epsilon"] == price(event, Geometric(5), 1e-5, ZERO_OUT)
    assert shown["candidate_epsilon"] < shown["epsilon"]  # type: ignore[operator]


@pytest.mark.thorough
def test_the_best_model_is_released_and_charged_once(archive: Path, tmp_path: Path) -> None:
    ledger, out = str(tmp_path / "budget.db"), tmp_path / "search"
    budget = ("--epsilon=3", "--delta=1e-4", "--relation=zero-out")
    assert prudent("budget", "create", ledger, *budget).status == 0
    flags = (*PLAN, *FIXED, f"--dataset=npz:{archive}", f"--ledger={ledger}", f"--out={out}")
    first = found(prudent("tune", *flags, "--json", "--quiet"))
    assert set(first["setting"]) == {"lr", "clip"}  # type: ignore[call-overload]
    assert first["setting"]["clip"] in (0.5, 1.0)  # type: ignore[index]
    assert first["failed"] is False
    assert (out / "best" / "model.pt").exists()
    assert found(prudent("tune", *flags, "--resume", "--json", "--quiet")) == first
    (charge,) = json.loads(prudent("budget", "show", ledger, "--charges", "--json").out)
    assert charge["epsilon"] == pytest.approx(first["epsilon"])
    text = prudent("tune", *flags, "--resume")
    assert "for the whole search" in text.out
    over = prudent("tune", *flags[:-1], "--noise-multiplier=0.4", "--json", "--quiet")
    assert over.status == 4


def test_held_out_records_are_the_same_on_neighbours_and_not_trained_on(archive: Path) -> None:
    data = load(f"npz:{archive}")
    search = SettingSearch(
        experiment=Experiment.of(method="dpsgd", steps=2, epsilon=None, noise_multiplier=1.0),
        space=SettingRanges({"lr": SettingRange(0.1, 1.0)}),
        trials=Geometric(2),
    )
    some, rest = split_of(600, search.held_out)
    assert torch.equal(torch.cat([some, rest]).sort().values, torch.arange(600))
    assert len(rest) == 60
    work = search.candidate(data, search.plan(600)).run
    assert torch.equal(work.train_set[0], data.train_features[some])  # type: ignore[attr-defined]
    assert torch.equal(work.score.labels, data.train_labels[rest])  # type: ignore[attr-defined]
    # A person with two records may have one in each part, which costs both.
    two = attrs.evolve(
        search, experiment=search.experiment.changed(relation=Relation("zero-out", 2))
    )
    assert isinstance(search.event(search.plan(600)), WorstOfDpEvent)
    assert isinstance(two.event(two.plan(600)), dp.ComposedDpEvent)


@pytest.mark.slow
def test_people_are_on_one_side_and_count_once_in_a_score(archive: Path) -> None:
    data = load(f"npz:{archive}")
    owners = units(f"npz:{archive}", "owners")
    some, rest, first = held_apart(owners, data, 0.2)
    assert sorted([*some.tolist(), *rest.tolist()]) == list(range(600))
    assert not set(owners[some.numpy()]) & set(owners[rest.numpy()])
    scored = owners[rest[first].numpy()]
    assert len(scored) == len(set(scored)) == 30
    turned = attrs.evolve(
        data, train_features=data.train_features.flip(0), train_labels=data.train_labels.flip(0)
    )
    _, again, chosen = held_apart(owners[::-1].copy(), turned, 0.2)
    before = {owners[n]: data.train_features[n] for n in rest[first].tolist()}
    after = {owners[::-1][n]: turned.train_features[n] for n in again[chosen].tolist()}
    assert all(torch.equal(before[person], after[person]) for person in after)


@pytest.mark.thorough
def test_a_search_protects_people(archive: Path) -> None:
    flags = ("--unit=owners", "--records-per-person=3", f"--dataset=npz:{archive}")
    shown = found(prudent("tune", *PLAN, *FIXED, *flags, "--json", "--quiet"))
    assert shown["failed"] is False
    told = prudent("tune", *PLAN, *FIXED, *flags, "--dry-run", "--records=150")
    assert "one person" in told.out


@pytest.mark.thorough  # tests/tune solves for the noise of a search of one step
def test_noise_is_solved_for_the_whole_search() -> None:
    flags = ("--epsilon=2", "--steps=50", "--search=lr=0.1:1", "--dry-run", "--records=6000")
    shown = found(prudent("tune", *flags, "--json", "--quiet"))
    assert 1.9 < shown["epsilon"] <= 2  # type: ignore[operator]


def test_search_spaces_are_read() -> None:
    space = space_of(["lr=0.05:2:log", "trim-up=0:0.1", "momentum=0,0.9"])
    assert space.of == {
        "lr": SettingRange(0.05, 2.0, True),
        "trim_up": SettingRange(0.0, 0.1),
        "momentum": (0.0, 0.9),
    }


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        (("--search=propose=0.1:1",), "--search"),  # changes the price of a candidate
        (("--search=lr",), "--search"),
        (("--search=lr=2:1",), "--search"),
        (("--search=lr=0:1:log",), "--search"),
        (("--search=lr=nan:1",), "--search"),
        (("--search=lr=-1:1",), "lr"),
        (("--search=lr=1:2", "--search=lr=1:2"), "--search"),
        (("--search=lr=1:2", "--method=sgd"), "--method"),
        (("--search=lr=1:2", "--candidates=0"), "--candidates"),
        (("--search=lr=1:2", "--candidates=1.5", "--distribution=fixed"), "--candidates"),
        (("--search=lr=1:2", "--held-out=0"), "--held-out"),
        (("--search=lr=1:2", "--score-noise=0"), "--score-noise"),
        (("--search=lr=1:2", "--records=10"), "--records"),
        (("--search=lr=1:2", "--epsilon=1"), "--noise-multiplier"),
    ],
)
def test_what_is_wrong_is_named(flags: tuple[str, ...], flag: str) -> None:
    assert flag in wrong("--steps=3", "--noise-multiplier=2", *flags)
