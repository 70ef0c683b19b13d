"""The strategy, with Flower's own messages and loop, and a grid within this process."""

import copy
import logging
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

pytest.importorskip("flwr", reason="needs the extra `federated`")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from prudent import Ledger
from prudent.accounting.relations import ZERO_OUT
from prudent.budget.ledger import OverBudgetError
from prudent.training import Plan, Sum
from prudent.training.adapters.federated import PrivateStrategy
from tests.training.adapters.federated.grid import LocalGrid, adding, arrays

TINY = 1e-6
MODEL = {"weight": np.zeros((2, 3), np.float32), "bias": np.ones(2, np.float32)}
UP = {"weight": np.full((2, 3), 0.1, np.float32), "bias": np.zeros(2, np.float32)}
FAR = {"weight": np.full((2, 3), 1e6, np.float32), "bias": np.zeros(2, np.float32)}


def plan_of(rate=1.0, steps=50, noise=TINY, **others):
    return Plan(
        sampling_rate=rate, steps=steps, aggregation=Sum(clip=1.0, noise_multiplier=noise), **others
    )


def strategy_of(plan=None, clients=4, **options):
    options = {"seed": 3, "patience": 0} | options
    return PrivateStrategy(plan or plan_of(), clients=clients, **options)


def run(strategy, clients, rounds=1, **options):
    grid = LocalGrid(dict(enumerate(clients, start=10)))
    result = strategy.start(grid, arrays(**MODEL), num_rounds=rounds, **options)
    return result, grid


def weight(result):
    return result.arrays["weight"].numpy()


def test_the_mean_update_is_added_to_the_model():
    result, _ = run(strategy_of(), [adding(UP)] * 4)
    assert weight(result) == pytest.approx(0.1, abs=1e-5)
    assert result.arrays["bias"].numpy() == pytest.approx(1.0, abs=1e-5)
    assert weight(result).dtype == np.float32
    assert weight(result).shape == (2, 3)


def test_each_update_is_clipped():
    result, _ = run(strategy_of(), [adding(UP)] * 3 + [adding(FAR)])
    expected = (3 * 0.1 + 1 / math.sqrt(6)) / 4
    assert weight(result) == pytest.approx(expected, abs=1e-5)


def test_the_sum_is_divided_by_the_public_number_not_by_the_answers():
    result, _ = run(strategy_of(clients=8), [adding(UP)] * 4)
    assert weight(result) == pytest.approx(0.05, abs=1e-5)


def no_answer(message):
    return []


def failure(message):
    return [Message(Error(0, "out of memory"), reply_to=message)]


def replying(*records):
    def answer(message):
        content = RecordDict({f"record-{i}": record for i, record in enumerate(records)})
        return [Message(content, reply_to=message)]

    return answer


def reply_of(**values):
    return replying(arrays(**values))


ONES = np.ones((2, 3), np.float32)  # taken for an update, it would show
BIAS = MODEL["bias"]
NONSENSE = {
    "no answer": no_answer,
    "an error": failure,
    "no arrays": replying(),
    "two records": replying(arrays(weight=ONES, bias=BIAS), arrays(weight=ONES, bias=BIAS)),
    "names of its own": reply_of(weight=ONES, other=BIAS),
    "another order": reply_of(bias=BIAS, weight=ONES),
    "an array missing": reply_of(weight=ONES),
    "another shape": reply_of(weight=ONES.T, bias=BIAS),
    "another size": reply_of(weight=np.ones((4, 3), np.float32), bias=BIAS),
    "whole numbers": reply_of(weight=ONES.astype(np.int64), bias=BIAS),
    "text": reply_of(weight=np.full((2, 3), "x"), bias=MODEL["bias"]),
    "NaN": reply_of(weight=np.full((2, 3), np.nan, np.float32), bias=MODEL["bias"]),
    "infinity": reply_of(weight=np.full((2, 3), np.inf, np.float32), bias=MODEL["bias"]),
    "bytes that are no array": replying(
        ArrayRecord(
            {
                "weight": Array("float32", (2, 3), "numpy.ndarray", b"\x80nonsense"),
                "bias": Array(MODEL["bias"]),
            }
        )
    ),
}


@pytest.mark.parametrize("client", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_client_that_fails_counts_as_not_drawn(client):
    result, _ = run(strategy_of(), [adding(UP)] * 3 + [client])
    assert weight(result) == pytest.approx(0.075, abs=1e-5)


def test_only_one_answer_of_a_client_counts():
    def twice(message):
        return adding(UP)(message) * 2

    result, _ = run(strategy_of(), [twice] * 4)
    assert weight(result) == pytest.approx(0.1, abs=1e-5)


def test_an_answer_of_a_client_that_was_not_drawn_is_ignored():
    strategy = strategy_of(plan_of(rate=0.5), seed=5)
    grid = LocalGrid(dict.fromkeys(range(4), adding(UP)))
    model = arrays(**MODEL)
    messages = strategy.configure_train(1, model, ConfigRecord(), grid)
    drawn = {message.metadata.dst_node_id for message in messages}
    assert 0 < len(drawn) < 4
    forged = [
        Message(RecordDict({"arrays": model}), dst_node_id=node, message_type="train")
        for node in range(4)
    ]
    replies = [reply for message in forged for reply in adding(UP)(message)]
    moved, _ = strategy.aggregate_train(1, replies)
    assert moved["weight"].numpy() == pytest.approx(0.1 * len(drawn) / 2, abs=1e-5)


def test_nothing_a_client_reports_is_looked_at():
    quiet, _ = run(strategy_of(), [adding(UP)] * 4)
    loud, _ = run(strategy_of(), [adding(UP, **{"num-examples": 10**9, "loss": 7.0})] * 4)
    assert np.array_equal(weight(quiet), weight(loud))
    for metrics in loud.train_metrics_clientapp.values():
        assert set(metrics) == {"passed", "trim", "noise"}
    assert loud.evaluate_metrics_clientapp == {}


def test_metrics_do_not_depend_on_how_many_were_drawn():
    plan = plan_of(rate=0.5, noise=1.0)
    few, _ = run(strategy_of(plan), [adding(UP)] * 4, rounds=5)
    many, _ = run(strategy_of(plan), [adding(UP)] * 40, rounds=5)
    assert few.train_metrics_clientapp == many.train_metrics_clientapp


def draws(rate, clients, rounds, seed=11):
    strategy = strategy_of(plan_of(rate=rate, steps=rounds), clients=clients, seed=seed)
    _, grid = run(strategy, [no_answer] * clients, rounds=rounds)
    train, evaluate = grid.sent[0::2], grid.sent[1::2]
    assert not any(evaluate)
    table = np.zeros((rounds, clients), bool)
    for row, nodes in zip(table, train, strict=True):
        row[np.array(nodes, dtype=int) - 10] = True
    return table


def poisson_like(table, rate):
    """The smallest p-value of three checks: size, its variance, and each client's share."""
    rounds, clients = table.shape
    sizes = table.sum(1)
    spread = rate * (1 - rate)
    mean = stats.norm.sf(abs(sizes.mean() - clients * rate) / math.sqrt(clients * spread / rounds))
    ratio = ((sizes - clients * rate) ** 2).sum() / (clients * spread)
    shares = ((table.sum(0) - rounds * rate) ** 2).sum() / (rounds * spread)
    pairs = [
        2 * min(stats.chi2.sf(value, freedom), stats.chi2.cdf(value, freedom))
        for value, freedom in ((ratio, rounds), (shares, clients))
    ]
    return min(2 * mean, *pairs)


def test_each_client_is_drawn_by_a_coin_of_its_own():
    assert poisson_like(draws(0.3, 40, 300), 0.3) > 1e-3


def test_a_fixed_size_or_another_rate_would_be_noticed():
    chance = np.random.default_rng(0)
    fixed = np.zeros((300, 40), bool)
    for row in fixed:
        row[chance.choice(40, 12, replace=False)] = True
    assert poisson_like(fixed, 0.3) < 1e-3
    assert poisson_like(chance.random((300, 40)) < 0.34, 0.3) < 1e-3


def test_a_draw_that_led_to_no_release_is_not_repeated():
    strategy, model = strategy_of(plan_of(rate=0.5), clients=64), arrays(**MODEL)
    grid = LocalGrid(dict.fromkeys(range(64), adding(UP)))
    drawn = [
        {m.metadata.dst_node_id for m in strategy.configure_train(1, model, ConfigRecord(), grid)}
        for _ in range(2)
    ]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("seed", [3, None])
def test_a_seeded_strategy_says_that_its_noise_is_predictable(caplog, seed):
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        strategy_of(seed=seed).summary()
    finally:
        logger.removeHandler(caplog.handler)
    assert ("The noise is predictable" in caplog.text) is (seed is not None)


def test_draws_differ_without_a_seed_and_agree_with_one():
    assert np.array_equal(draws(0.5, 20, 10), draws(0.5, 20, 10))
    assert not np.array_equal(draws(0.5, 20, 10, seed=None), draws(0.5, 20, 10, seed=None))


def test_nobody_drawn_is_a_round_of_noise():
    result, grid = run(strategy_of(plan_of(rate=1e-9, noise=1.0)), [adding(UP)] * 4)
    assert grid.sent == [[], []]
    assert np.all(weight(result) != 0)


def test_the_noise_on_the_model_has_the_plans_scale():
    model = {"weight": np.zeros(40_000, np.float32)}
    grid = LocalGrid({1: adding({"weight": np.zeros(40_000, np.float32)})})
    strategy = strategy_of(plan_of(noise=1.5), clients=4)
    result = strategy.start(grid, arrays(**model), num_rounds=1)
    assert weight(result).std() == pytest.approx(1.5 / 4, rel=0.015)


def test_more_rounds_than_the_plan_has_are_refused_before_the_first():
    strategy = strategy_of(plan_of(steps=2))
    with pytest.raises(ValueError, match="Expected num_rounds at most 2"):
        run(strategy, [adding(UP)] * 4, rounds=3)
    assert strategy.taken == 0
    run(strategy, [adding(UP)] * 4, rounds=2)
    with pytest.raises(ValueError, match="at most 0"):
        run(strategy, [adding(UP)] * 4, rounds=1)
    with pytest.raises(ValueError, match=r"at most plan\.steps = 2 rounds"):
        strategy.configure_train(3, arrays(**MODEL), ConfigRecord(), LocalGrid({}))


def test_a_round_is_released_once():
    strategy = strategy_of()
    run(strategy, [adding(UP)] * 4)
    with pytest.raises(ValueError, match="Expected configure_train before aggregate_train"):
        strategy.aggregate_train(2, [])


def test_epsilon_is_that_of_the_rounds_taken():
    plan = plan_of(rate=0.1, steps=40, noise=1.0)
    strategy = strategy_of(plan)
    assert strategy.epsilon(1e-5) == 0
    run(strategy, [no_answer] * 4, rounds=7)
    assert strategy.epsilon(1e-5) == plan.epsilon_after(7, 1e-5)


def test_the_servers_optimizer_is_any_of_torch():
    momentum = strategy_of(optimizer=torch.optim.SGD, lr=0.5, momentum=0.9)
    result, _ = run(momentum, [adding(UP)] * 4, rounds=2)
    assert weight(result) == pytest.approx(0.5 * 0.1 * (1 + 1.9), abs=1e-5)
    adam = strategy_of(optimizer=torch.optim.Adam, lr=0.25)
    result, _ = run(adam, [adding(UP)] * 4, rounds=2)
    assert weight(result) == pytest.approx(0.5, abs=1e-3)


def test_waiting_for_clients_ends():
    strategy = strategy_of(clients=100, patience=0.3)
    result, _ = run(strategy, [adding(UP)])
    assert weight(result) == pytest.approx(0.001, abs=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"count": np.zeros(2, np.int64)}, "floating-point numbers, got int64 for 'count'"),
        ({}, "at least one number"),
    ],
)
def test_a_model_that_cannot_be_released_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        strategy_of().start(LocalGrid({}), arrays(**model), num_rounds=1)


@pytest.mark.parametrize(
    ("more", "options", "model"),
    [
        ({}, {}, {"count": np.zeros(2, np.int64)}),
        ({"num_bands": 4}, {}, MODEL),
        ({}, {"lr": -1.0}, MODEL),
    ],
    ids=["model", "plan", "optimizer"],
)
def test_what_is_refused_is_not_paid_for(more, options, model, tmp_path):
    plan = plan_of(rate=0.1, steps=4, noise=4.0, **more)
    with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4, relation=ZERO_OUT) as ledger:
        strategy = strategy_of(plan, ledger=ledger, **options)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"floating-point|num_bands|learning rate"):
                strategy.start(LocalGrid({}), arrays(**model), num_rounds=1)
        assert (strategy.taken, ledger.history()) == (0, [])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="Expected clients a whole number >= 1, got 0"):
        PrivateStrategy(plan_of(), clients=0)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_strategy_is_not_copied(copied, begun):
    """A copy would draw the same clients and the same noise for other updates."""
    strategy = strategy_of()
    if begun:
        run(strategy, [adding(UP)] * 4)
    with pytest.raises(TypeError, match="holds the key of a run"):
        copied(strategy)


class TestLedger:
    def test_all_rounds_are_charged_before_the_first_draw(self, tmp_path):
        plan = plan_of(rate=0.5, steps=4, noise=4.0)
        with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4, relation=ZERO_OUT) as ledger:
            strategy = strategy_of(plan, ledger=ledger)
            assert ledger.history() == []
            for _ in range(2):
                run(strategy, [adding(UP)] * 4)
                (charge,) = ledger.history()
                assert (charge.event, charge.outcome) == (plan.event, {"released": 1})

    def test_a_refusal_sends_no_message(self, tmp_path):
        with Ledger(tmp_path / "budget.db", epsilon=0.01, delta=1e-9, relation=ZERO_OUT) as ledger:
            strategy = strategy_of(plan_of(rate=0.5, steps=4, noise=4.0), ledger=ledger)
            grid = LocalGrid(dict(enumerate([adding(UP)] * 4, start=10)))
            with pytest.raises(OverBudgetError):
                strategy.start(grid, arrays(**MODEL), num_rounds=1)
            assert (grid.sent, strategy.taken, ledger.history()) == ([], 0, [])


def test_a_federated_run_has_a_receipt_that_is_verified(tmp_path):
    pytest.importorskip("flint")
    from prudent_verify.checks import verify

    path = tmp_path / "receipt.json"
    strategy = strategy_of(plan_of(rate=0.5, steps=2, noise=5.0), seed=None, receipt=path)
    run(strategy, [adding(UP)] * 4, rounds=2)
    found = verify(path)
    assert found.status == 0, found.lines()
    assert found.receipt.unit == "client"
    assert found.receipt.released["rounds"] == 2


def test_the_ledger_notes_the_model_of_all_rounds(tmp_path):
    pytest.importorskip("flint")
    from prudent_verify.checks import Standing, verify

    path, plan = tmp_path / "receipt.json", plan_of(rate=0.5, steps=2, noise=5.0)
    with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4, relation=ZERO_OUT) as ledger:
        strategy = strategy_of(plan, seed=None, receipt=path, ledger=ledger)
        for standing in (Standing.UNCHECKED, Standing.PROVED):  # after one round, and after both
            run(strategy, [adding(UP)] * 4)
            found = {each.claim: each.standing for each in verify(path).findings}
            assert (found["ledger"], found["answer"]) == (Standing.PROVED, standing)
        assert verify(path).status == 0
        assert ledger.history()[0].outcome == {"released": 1}
