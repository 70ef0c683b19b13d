"""What comes with a run: schedules, callbacks, the budget of the data, tests that never pass."""

import attrs
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from prudent.accounting import ADD_REMOVE, ZERO_OUT, GaussianTest
from prudent.budget.ledger import OverBudgetError
from prudent.release import Ledger
from prudent.training import Execution, FixedTrim, Plan, ProposeTestRelease, Sum, fit
from prudent.training.captured import Captured
from prudent.training.noise import HostNoise
from prudent.training.parallel import load_optimizer
from prudent.training.run import run
from prudent.training.run.checkpoint import charged
from prudent_lab.corruption import Mimic
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered

RECORDS, RATE, STEPS = 60, 0.2, 8
PLAN = Plan(
    sampling_rate=RATE,
    steps=STEPS,
    aggregation=Sum(clip=1.0, noise_multiplier=2.0),
    expected_batch=12,
)


class Killed(BaseException):
    """Ends a run like a kill does."""


def train(plan=PLAN, **options):
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(RECORDS, 4, generator=generator), torch.arange(RECORDS) % 3
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
    model = options.pop("model", plain)
    settings = {"execution": Execution(seed=3), "lr": 0.5, "evaluate_every": 2}
    return fit(plan, model, cross_entropy, data, **gathered(settings | options))


def weights(fitted):
    return torch.cat([p.detach().flatten() for p in fitted.model.parameters()])


def killed(step, **options):
    """A run that is killed after the evaluation at a step, before its checkpoint is used."""

    def stopping(model, metrics):
        if metrics.step == step:
            raise Killed

    with pytest.raises(Killed):
        train(callbacks=[stopping], **options)


SCHEDULERS = {
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=STEPS),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=STEPS + 1),
    "warm-up": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer), StepLR(optimizer, 2)], milestones=[3]
    ),
}


class TestSchedule:
    def test_it_is_stepped_after_every_step(self):
        """With a rate of zero from the fourth step on, the model stays as it is."""
        few = Plan(sampling_rate=RATE, steps=3, aggregation=PLAN.aggregation, expected_batch=12)
        stopped = train(scheduler=lambda o: LambdaLR(o, lambda step: float(step < 3)))
        assert torch.equal(weights(stopped), weights(train(few)))

    @pytest.mark.parametrize(
        "name",
        [
            "cosine",
            "warm-up",
            *(pytest.param(n, marks=pytest.mark.slow) for n in ("one", "lambda")),
        ],
    )
    @pytest.mark.filterwarnings("ignore:The epoch parameter")  # of torch's own call, before 2.7
    def test_it_is_saved(self, tmp_path, name):
        options = {"scheduler": SCHEDULERS[name], "momentum": 0.9}
        expected = train(**options)
        assert not torch.equal(weights(expected), weights(train(momentum=0.9)))
        killed(4, out=tmp_path, **options)
        resumed = train(out=tmp_path, resume=True, **options)
        assert torch.equal(weights(resumed), weights(expected))

    def test_another_is_refused_when_resuming(self, tmp_path):
        """Repeated steps would be taken from other parameters, with the same noise."""
        killed(4, out=tmp_path, scheduler=SCHEDULERS["cosine"])
        for other in (None, SCHEDULERS["lambda"]):
            with pytest.raises(ValueError, match="Expected scheduler as at the start of this run"):
                train(out=tmp_path, resume=True, scheduler=other)

    @pytest.mark.parametrize("wrong", [ReduceLROnPlateau, lambda optimizer: None, 0.5])
    def test_what_is_refused(self, wrong):
        with pytest.raises(ValueError, match="Expected scheduler a function of the optimizer"):
            train(scheduler=wrong)

    def test_one_that_cannot_be_saved_is_refused_before_anything_is_paid(self, tmp_path):
        class Odd(StepLR):
            def state_dict(self):
                return {"odd": Killed()}

        with pytest.raises(ValueError, match="which a checkpoint can hold"):
            train(scheduler=lambda optimizer: Odd(optimizer, 2), out=tmp_path)
        assert charged(tmp_path) is None


class TestCallbacks:
    def test_they_get_the_model_and_what_is_public(self, tmp_path):
        seen = []

        def note(model, metrics):
            assert charged(tmp_path)[0] >= metrics.step
            seen.append((metrics, model[0].weight.detach().clone()))
            model.eval()

        fitted = train(
            callbacks=[note],
            out=tmp_path,
            average=0.5,
            evaluate=lambda model: {"one": 1},
        )
        assert [metrics.step for metrics, _ in seen] == [2, 4, 6, 8]
        assert seen[0][0].evaluation == {"one": 1.0}
        assert torch.equal(seen[-1][1], fitted.model[0].weight)  # the average, as evaluated
        assert torch.equal(weights(fitted), weights(train(average=0.5)))  # dropout stayed on


class Graphs(Captured):
    """Repeats with the settings that held when it was made, as a graph does, but on a CPU."""

    def clear(self):
        self.made = None

    def put(self, settings):
        for group, rate, needs in settings:
            group["lr"] = rate
            for parameter, needed in zip(group["params"], needs, strict=True):
                parameter.requires_grad_(needed)

    def __call__(self, fixed, *arguments):
        groups = OWN["groups"]
        now = [(group, group["lr"], [p.requires_grad for p in group["params"]]) for group in groups]
        self.made = self.made or [(group, 1 * rate, needs) for group, rate, needs in now]
        self.put(self.made)
        result = self._function(fixed, *arguments)
        self.put(now)
        return result


OWN = {}
CHANGES = {
    "rate": lambda model: OWN["groups"][0].update(lr=0.01),
    "rate in a tensor": lambda model: OWN["groups"][0]["lr"].mul_(0.1),
    "freezing": lambda model: model[0].requires_grad_(False),
    "hook": lambda model: OWN["optimizer"].register_step_pre_hook(
        lambda own, *_: own.param_groups[0].update(lr=0.9 * own.param_groups[0]["lr"])
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_captured_run_of_a_model_with_a_sparse_buffer(monkeypatch, layout):
    def sparse(model, metrics):
        model.mask = 2 * model.mask

    def cleared(**options):
        times = []
        with monkeypatch.context() as patch:
            patch.setattr(Graphs, "clear", lambda own: times.append(setattr(own, "made", None)))
            model = nn.Sequential(nn.Linear(4, 3))
            model.register_buffer("mask", torch.eye(2).to_sparse(layout=layout))
            train(model=model, execution=Execution(seed=3, cuda_graph=True), **options)
        return len(times)

    OWN["groups"] = []
    monkeypatch.setattr(run, "Captured", Graphs)
    monkeypatch.setattr(HostNoise, "capturable", True)
    assert cleared(callbacks=[sparse]) > cleared()  # it is in another place


def test_an_optimizer_is_capturable_where_it_is_resumed():
    def made():
        parameter = nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        return torch.optim.Adam([parameter])

    saved, other = made(), made()
    saved.step()
    state = saved.state_dict()
    state["param_groups"][0]["capturable"] = True  # on a GPU
    load_optimizer(other, state)
    other.step()
    assert not other.param_groups[0]["capturable"]
    state["param_groups"] *= 2
    with pytest.raises(ValueError, match="number of parameter groups"):
        load_optimizer(other, state)


@pytest.mark.unhurried
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_callback_changes_takes_effect_in_a_captured_run(monkeypatch, change):
    def kept(parameters, lr):
        lr = torch.tensor(lr) if "tensor" in change else lr
        OWN["optimizer"] = own = torch.optim.SGD(parameters, lr=lr, momentum=0.5, foreach=False)
        OWN["groups"] = own.param_groups
        return own

    def changing(model, metrics):
        if metrics.step == 4:
            CHANGES[change](model)

    plain, unchanged = (train(optimizer=kept, callbacks=each) for each in ([changing], []))
    assert not torch.equal(weights(plain), weights(unchanged))
    monkeypatch.setattr(run, "Captured", Graphs)
    monkeypatch.setattr(HostNoise, "capturable", True)
    execution = Execution(seed=3, cuda_graph=True)
    captured = train(optimizer=kept, callbacks=[changing], execution=execution)
    assert torch.equal(weights(captured), weights(plain))


class TestLedger:
    @pytest.mark.unhurried
    def test_the_whole_run_is_charged_before_its_first_step(self, tmp_path):
        with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4) as ledger:
            history = []

            def evaluate(model):
                history.append(len(ledger.history()))
                return {}

            train(ledger=ledger, delta=1e-5, evaluate=evaluate)
            assert history == [0, 1, 1, 1, 1]  # the rehearsal costs nothing
            (charge,) = ledger.history()
            assert (charge.event, charge.delta) == (PLAN.event, 1e-5)
            assert charge.label.startswith("training run ")
            assert charge.outcome == {"released": 1}
            train(ledger=ledger)
            assert len(ledger.history()) == 2

    def test_what_does_not_fit_is_not_trained(self, tmp_path):
        with Ledger(tmp_path / "budget.db", epsilon=0.01, delta=1e-9) as ledger:
            with pytest.raises(OverBudgetError):
                train(ledger=ledger, out=tmp_path / "run")
            assert charged(tmp_path / "run") is None

    @pytest.mark.parametrize("step", [2, pytest.param(6, marks=pytest.mark.slow)])
    def test_a_resumed_run_is_charged_once(self, tmp_path, step):
        out = tmp_path / "run"
        with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4) as ledger:
            train(ledger=ledger)  # another run of the same plan and seed
            killed(step, ledger=ledger, out=out)
            assert [bool(charge.outcome) for charge in ledger.history()] == [True, False]
            for _ in range(2):
                train(ledger=ledger, out=out, resume=True)
                assert [bool(charge.outcome) for charge in ledger.history()] == [True, True]

    def test_killed_before_it_was_charged(self, tmp_path, monkeypatch):
        out = tmp_path / "run"
        with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4) as ledger:

            def die(*_, **__):
                raise Killed

            with monkeypatch.context() as patched:
                patched.setattr(ledger, "charge", die)
                with pytest.raises(Killed):
                    train(ledger=ledger, out=out)
            train(ledger=ledger, out=out, resume=True)
            assert len(ledger.history()) == 1

    @pytest.mark.unhurried
    def test_a_longer_run_pays_the_difference(self, tmp_path):
        out, half = tmp_path / "run", attrs.evolve(PLAN, steps=STEPS // 2)
        with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4) as ledger:
            train(half, ledger=ledger, out=out)
            train(ledger=ledger, out=out, resume=True)
            events = [charge.event for charge in ledger.history()]
            assert events == [PLAN.event_after(STEPS // 2)] * 2

    def test_its_relation_must_cover_the_plan(self, tmp_path):
        counted = Plan(sampling_rate=RATE, steps=STEPS, aggregation=PLAN.aggregation)
        with (
            Ledger(tmp_path / "a.db", epsilon=50.0, delta=1e-4, relation=ADD_REMOVE) as secret,
            Ledger(tmp_path / "b.db", epsilon=50.0, delta=1e-4, relation=ZERO_OUT) as public,
        ):
            with pytest.raises(ValueError, match="the number of records is public"):
                train(counted, ledger=secret)
            assert secret.history() == []
            train(counted, ledger=public)
            train(PLAN, ledger=public)
            assert len(public.history()) == 2

    def test_what_else_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"Expected ledger an open prudent\.Ledger"):
            train(ledger="budget.db")
        with (
            Ledger(tmp_path / "a.db", epsilon=50.0, delta=1e-4) as ledger,
            pytest.raises(ValueError, match="Expected ledger None with Mimic"),
        ):
            train(ledger=ledger, corrupt=Mimic(0.1))


def rule(propose=0.5, scale=0.5, share=0.5, clip=1.0):
    return ProposeTestRelease(
        clip=clip,
        propose=propose,
        noise_multiplier=2.0,
        test=GaussianTest(scale),
        trim=FixedTrim(share),
    )


def plan_of(aggregation, steps=60):
    return Plan(sampling_rate=RATE, steps=steps, aggregation=aggregation, expected_batch=12)


class TestTestsThatNeverPass:
    def test_it_is_said_before_anything_is_paid_if_no_data_could_pass(self, tmp_path):
        with (
            pytest.warns(RuntimeWarning, match="whatever the data") as said,
            Ledger(tmp_path / "budget.db", epsilon=1e-3, delta=1e-9) as ledger,
            pytest.raises(OverBudgetError),
        ):
            train(plan_of(rule(scale=4.0)), ledger=ledger)
        (about,) = (str(each.message) for each in said if "whatever" in str(each.message))
        assert "exceed 22.4 records, and the margin is at most 6" in about

    @pytest.mark.thorough
    def test_a_test_that_passes_is_not_talked_about(self, recwarn):
        fitted = train(plan_of(rule(clip=50.0, propose=0.9)), lr=1e-6)
        assert fitted.pass_rate > 0.5
        train(plan_of(Sum(clip=1.0, noise_multiplier=1.0)))
        assert all("predictable" in str(each.message) for each in recwarn)


def test_errors_of_an_evaluation_cost_nothing(tmp_path):
    def failing(model):
        raise RuntimeError("no test data")

    with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4) as ledger:
        with pytest.raises(RuntimeError, match="no test data"):
            train(evaluate=failing, ledger=ledger, out=tmp_path / "run")
        assert ledger.history() == []
    assert charged(tmp_path / "run") is None


def test_the_rehearsal_of_an_evaluation_leaves_no_trace():
    """Neither in the random numbers of dropout nor in the mode of the model."""

    def drawing(model):
        torch.rand(7)
        model.eval()
        return {}

    few = {"evaluate_every": STEPS}
    assert torch.equal(weights(train(evaluate=drawing, **few)), weights(train(**few)))
