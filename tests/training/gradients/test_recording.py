"""Recorded programs: the numbers of the function, bit for bit, or no program at all."""

import copy
import random
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from prudent._torch_private import TorchDispatchMode
from prudent.accounting import GaussianTest
from prudent.training import Chunk, Key, Plan, ProposeTestRelease, Step
from prudent.training.compiled import kind
from prudent.training.gradients.record_streams import restarting
from prudent.training.gradients.recording import (
    Recorded,
    before_choices,
    chosen_on_host,
    exchanged,
    kept_whole,
)
from tests.training.gradients.oracle import cross_entropy

CPU = torch.device("cpu")


def recorded(function):
    return Recorded(function, kind, lambda: restarting(CPU), tuple)


def programs(made):
    return [program is not None for program in made._programs.values()]


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    return nn.Sequential(*layers)


def released(model, recording, change=None):
    plan = Plan(
        sampling_rate=0.1,
        steps=9,
        aggregation=ProposeTestRelease(
            clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(1.0), failure=1e-2
        ),
    )
    step = Step(plan, model, cross_entropy, expected_batch=6, key=Key.from_seed(3))
    if recording:
        step._run = Recorded(step._release, kind, lambda: restarting(CPU), step.modes)
    found, draw = [], torch.Generator().manual_seed(5)
    for number in range(6):
        images = torch.randn(6, 1, 8, 8, generator=draw)
        if number == 4 and change is not None:
            change(model)
        valid = torch.arange(6) < 6 - number
        outcome = step([Chunk(images, torch.arange(6) % 3, valid)])
        found += [p.grad.clone() for p in model.parameters()]
        found += [outcome.loss, outcome.drawn, outcome.noise, outcome.passed]
    return found, step


def test_a_step_is_the_same_bit_for_bit():
    model = network()
    expected, _ = released(copy.deepcopy(model), False)
    found, step = released(model, True)
    assert programs(step._run) == [True]
    assert all(map(torch.equal, found, expected))


def set_dropout(model):
    model[3].p = 1.0


def add_hook(model):
    model[0].register_forward_hook(lambda module, given, made: 2 * made)


def replace_activation(model):
    model[2] = nn.GELU()


@pytest.mark.parametrize("change", [set_dropout, add_hook, replace_activation])
def test_a_step_notices_a_changed_model(change):
    model = network().insert(3, nn.Dropout(0.0))
    expected, _ = released(copy.deepcopy(model), False, change)
    usual, _ = released(copy.deepcopy(model), False)
    found, step = released(model, True, change)
    assert programs(step._run) == [True, True]
    assert all(map(torch.equal, found, expected))
    assert not all(map(torch.equal, found, usual))


def test_it_runs_no_python_of_the_function():
    calls = []

    def function(values):
        calls.append(len(values))
        return {"sum": (values * 2).sum(), "given": values}

    run = recorded(function)
    for number in range(5):
        values = torch.full((4,), float(number))
        answer = run(values)
        assert float(answer["sum"]) == 8 * number
        assert answer["given"] is values
    assert calls == [4, 4, 4]  # as it is, recorded, compared
    run(torch.ones(5))
    assert calls[3:] == [5]  # another shape


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values.sum() if bool(values.sum() > 0) else -values.sum(),
        lambda values: values[values > 0].sum(),
        lambda values: values * values.max().item(),
    ],
    ids=["branch", "mask", "item"],
)
def test_a_function_that_reads_values_is_not_recorded(function):
    run = recorded(function)
    for sign in (1.0, 1.0, -1.0, 2.0):
        values = sign * torch.tensor([1.0, 2.0, -0.5])
        assert torch.equal(run(values), function(values))
    assert programs(run) == [False]


def test_a_program_that_would_give_other_numbers_is_dropped():
    """Its function has a state on the host: repeated, it would stand still."""
    count = 0

    def function(values):
        nonlocal count
        count += 1
        return values * torch.from_numpy(values.numpy() * count)  # around torch's operations

    run = recorded(function)
    for number in range(1, 6):
        values = torch.full((3,), float(number))
        answer = run(values)
        assert float(answer[0]) == number**2 * count
    assert programs(run) == [False]


def test_a_kernel_that_torch_does_not_see_is_not_left_out():
    """A program without it would read memory that no longer holds what the kernel wrote."""

    def function(values):
        filled = torch.empty_like(values)
        filled.numpy()[:] = values.numpy() + 1
        return filled * 2

    run = recorded(function)
    for number in range(1, 6):
        values = torch.full((1000,), 1 + number / 1000)  # all but the same: a sketch is not enough
        assert torch.equal(run(values), function(values))
    assert programs(run) == [False]


def test_draws_of_the_default_generator_go_on():
    run = recorded(lambda values: torch.nn.functional.dropout(values, 0.5))
    values, found, expected = torch.ones(64), [], []
    for draw, answers in ((run, found), (lambda v: nn.functional.dropout(v, 0.5), expected)):
        torch.manual_seed(7)
        answers += [draw(values) for _ in range(5)]
    assert programs(run) == [True]
    assert all(map(torch.equal, found, expected))


def test_a_kernel_is_one_call_and_what_it_wrote_is_used():
    calls = []

    @kept_whole
    def kernel(values, count):
        calls.append(count)
        filled = torch.empty_like(values)
        filled.numpy()[:] = values.numpy() + count  # as a kernel writes, unseen by torch
        return filled, [count]

    def function(values):
        filled, (count,) = kernel(values * 1, 3)
        return filled * count

    run = recorded(function)
    for number in range(4):
        assert torch.equal(run(torch.full((2,), float(number))), torch.full((2,), 3.0 * number + 9))
    assert programs(run) == [True]
    assert len(calls) == 1 + 1 + 2 + 1  # as it is, recorded, compared, repeated


def assert_alike(run, function, batches):
    for values in batches:
        found, expected = run(values), function(values.clone())
        assert torch.equal(found, expected)
    assert programs(run) == [True]


def test_views_of_an_argument_follow_it_in_its_memory():
    """The rows of a larger tensor, which begin elsewhere every time."""
    whole = torch.randn(50, 6)

    def function(rows):
        return rows.t()[1:, ::2].unflatten(0, (1, 5)) * rows[:1, 0]

    assert_alike(
        recorded(function), function, [whole[start : start + 4] for start in range(0, 40, 3)]
    )


def test_what_is_written_through_a_view_is_read_by_others():
    def function(values):
        total = torch.zeros(3, 4)
        total[1:].view(-1)[::2] += values.sum()
        first = total.t() * 2
        total.t()[0] = 5.0
        again = total.t() * 2  # the same call of other numbers
        ones = torch.ones_like(values)
        ones[0] = values[1]
        return first + again + ones.sum() + torch.ones_like(values).sum()

    assert_alike(recorded(function), function, [torch.randn(4) for _ in range(5)])


def test_a_program_computes_no_constant_and_nothing_twice():
    def function(values):
        mask = torch.arange(4).flip(0) > 1
        scale = torch.tensor(9.0).sqrt()
        values.exp().sum()  # which nobody reads
        return torch.where(mask, values * scale, values.cos()) + values.cos()

    calls = []
    run = recorded(function)
    for number in range(5):
        values = torch.full((4,), float(number))
        with Counted(calls):
            found = run(values)
        assert torch.equal(found, function(values))
    assert calls[-1] == {"mul": 1, "cos": 1, "where": 1, "add": 1}


class Counted(TorchDispatchMode):
    """Counts operations by their names."""

    def __init__(self, calls):
        super().__init__()
        calls.append({})
        self.count = calls[-1]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        self.count[name] = self.count.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def test_conversions_of_arguments_are_made_together():
    kinds = torch.bfloat16, torch.float64

    def function(*given):
        short = [each.to(kind) for kind in kinds for each in given]
        return [each[1:].sum() for each in short], short[0]

    run, counts = recorded(function), []
    for number in range(6):
        given = [torch.randn(size, 3).t() + number for size in (1, 2, 5, 64, 65)]
        with Counted(counts):
            found = run(*given)
        assert all(map(torch.equal, found[0], function(*given)[0]))
        assert torch.equal(found[1], function(*given)[1])
    assert programs(run) == [True]
    assert counts[0]["_to_copy"] == 10
    assert counts[-1]["_foreach_copy_"] == 2
    assert "_to_copy" not in counts[-1]


def test_a_number_on_the_host_that_changes_ends_the_program():
    heat = torch.tensor(4.0)

    def function(values):
        return values * heat.sqrt()

    run = recorded(function)
    for number in range(8):
        if number == 5:
            heat.fill_(9.0)
        values = torch.full((3,), float(number))
        assert torch.equal(run(values), function(values))
    assert programs(run) == [False]


@pytest.mark.parametrize("fails_once", [False, True])
def test_each_exchange_is_made_once_in_a_step(fails_once):
    """However often a step runs to be recorded and compared, others are asked once."""
    said = []

    def exchange(values):
        said.append(float(values.sum()))
        values *= 10

    def function(values):
        mine = values + 1
        exchanged(exchange, mine)
        if fails and len(said) == 2:
            fails.clear()
            raise RuntimeError("which only the recorded run meets")
        return mine.cumsum(0) + mine

    fails = ["once"] if fails_once else []
    run = recorded(function)
    for number in range(6):
        found = run(torch.full((2,), float(number)))
        assert torch.equal(found, torch.tensor([20.0, 30.0]) * (number + 1))
    assert said == [2.0 * (number + 1) for number in range(6)]
    assert programs(run) == [not fails_once]


def test_a_branch_on_a_number_of_the_host_is_followed():
    """As of a model that skips a layer: its program holds for the steps that skip none."""
    step, ran = [0], []

    def function(values):
        ran.append(step[0])
        before_choices(lambda: random.seed(step[0]))
        skips = chosen_on_host(lambda: torch.tensor(random.random())) < 0.3
        return values * 2 if skips else values + 1

    run = recorded(function)
    before = random.getstate()
    for step[0] in range(40):
        values = torch.full((3,), float(step[0]))
        skips = random.Random(step[0]).random() < 0.3
        assert torch.equal(run(values), values * 2 if skips else values + 1)
        random.setstate(before)
    assert programs(run) == [True]
    skipping = [n for n in range(3, 40) if random.Random(n).random() < 0.3]
    assert len(skipping) > 5
    other = skipping if random.Random(1).random() >= 0.3 else sorted({*range(3, 40)} - {*skipping})
    assert [n for n in ran if n > 5] == [n for n in other if n > 5]
    state = random.getstate()
    run(torch.ones(3))
    assert random.getstate() == state  # in a step for which the program holds


@pytest.mark.parametrize(
    "function",
    [
        lambda number, values: values * number,
        lambda number, values: values * torch.stack([number, number])[0],
    ],
    ids=["used", "joined"],
)
def test_a_number_of_the_host_that_is_no_branch_is_not_recorded(function):
    def drawn(values):
        return function(chosen_on_host(lambda: torch.tensor(random.random())), values)

    run = recorded(drawn)
    for seed in range(5):
        random.seed(seed)
        expected = torch.ones(3) * random.random()
        random.seed(seed)
        assert torch.equal(run(torch.ones(3)), expected)
    assert programs(run) == [False]


def test_views_of_another_type_follow_arguments_that_begin_elsewhere():
    """Else a program would read the records of another chunk."""

    def function(values):
        return values.view(torch.int32).t()[1:] * 2

    run, whole = recorded(function), torch.randn(40, 3)
    for begin in (0, 0, 0, 4, 8):
        values = whole[begin : begin + 4]
        assert torch.equal(run(values), function(values))
    assert programs(run) == [True]


def test_a_program_is_compared_even_if_the_first_comparison_fails():
    fails = [False]

    def function(values):
        doubled = torch.empty_like(values)
        doubled.numpy()[:] = 2 * values.numpy()  # no operation of torch, so it is not recorded
        if fails[0]:
            raise RuntimeError("not now")
        return doubled + 1

    run = recorded(function)
    for number in range(6):
        values = torch.full((3,), float(number))
        fails[0] = number == 2
        with pytest.raises(RuntimeError) if fails[0] else nullcontext():
            assert torch.equal(run(values), 2 * values + 1)
    assert programs(run) == [False]
