"""Accuracy and loss on held-out records: priced and noisy; what follows from them is free."""

import math

import attrs
import dp_accounting as dp
import pytest
import torch
from torch import nn

import prudent
from prudent import ArgumentError, HeldOut, Plan, Reporting, Sum
from prudent.accounting import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, WorstOfDpEvent
from prudent.accounting.group_privacy import event_at_distance
from prudent.records.people import Unit, Units
from prudent.training import Execution, Key, Step, fit
from prudent.training.run.charging import _steps
from prudent.training.run.reading import HeldOutRecords
from prudent.training.run.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::prudent._warning.PredictableNoiseWarning")

SETTINGS = HeldOut(every=4, noise_multiplier=3.0)
PLAN = Plan(
    sampling_rate=0.1,
    steps=10,
    aggregation=Sum(clip=1.0, noise_multiplier=2.0),
    held_out=SETTINGS,
)
LOSS = nn.CrossEntropyLoss(reduction="none")


def plain(plan=PLAN):
    return attrs.evolve(plan, held_out=None)


class TestPrice:
    def test_it_is_the_worse_of_training_and_of_all_releases_on_held_out_records(self):
        alone = dp.SelfComposedDpEvent(dp.GaussianDpEvent(3.0), 3)
        assert PLAN.event == WorstOfDpEvent([plain().event, alone])
        loud = attrs.evolve(PLAN, held_out=HeldOut(every=1, noise_multiplier=1.0))
        exact = dp.GaussianDpEvent(1 / math.sqrt(10))
        whole = prudent.accounting.PldAccountant().compose(exact).get_epsilon(1e-5)
        assert loud.epsilon(1e-5) == pytest.approx(whole, rel=1e-3)
        assert loud.epsilon(1e-5) > 5 * plain().epsilon(1e-5)
        quiet = attrs.evolve(PLAN, held_out=HeldOut(every=4, noise_multiplier=100.0))
        assert quiet.epsilon(1e-5) == pytest.approx(plain().epsilon(1e-5), rel=1e-3)

    def test_a_replaced_record_may_change_both_sides(self):
        plan = attrs.evolve(PLAN, relation=REPLACE_ONE)
        alone = dp.SelfComposedDpEvent(dp.GaussianDpEvent(3.0), 3)
        assert plan.event == dp.ComposedDpEvent([plain().event, alone])
        assert plan.epsilon(1e-5) > plain(plan).epsilon(1e-5) * 1.05
        # Of two records one may be trained on and one held out: the worse of both says too little.
        assert event_at_distance(PLAN.event, REPLACE_ONE) is None

    def test_calibration_and_length_leave_room_for_it(self):
        plan = attrs.evolve(PLAN, held_out=HeldOut(every=1, noise_multiplier=10.0))
        assert plan.calibrate(epsilon=2.0, delta=1e-5).epsilon(1e-5) <= 2.0
        with pytest.raises(ValueError, match="noise_multiplier"):
            attrs.evolve(PLAN, held_out=HeldOut(every=1, noise_multiplier=0.1)).calibrate(
                epsilon=1.0, delta=1e-5
            )

    @pytest.mark.parametrize("steps", [1, 3, 4, 5, 10])
    def test_as_many_are_priced_as_are_due(self, steps):
        due = [n for n in range(steps + 1) if SETTINGS.is_due(n, steps)]
        assert due == SETTINGS.steps_due(steps)
        assert len(due) == SETTINGS.releases(steps)
        for first in range(1, steps):
            assert SETTINGS.releases(first) >= sum(n <= first for n in due) - (first == steps)
        before = attrs.evolve(PLAN, before=dp.GaussianDpEvent(9.0), steps=steps)
        assert _steps(before.event, before) == _steps(PLAN.event_after(steps), PLAN) == steps

    @pytest.mark.parametrize(("steps", "every"), [(3, 1), (3, 3), (5, 2), (9, 4)])
    def test_a_ledger_knows_what_it_was_charged_for_in_the_midst_of_a_cycle(self, steps, every):
        plan = attrs.evolve(PLAN, steps=steps, num_bands=2, held_out=HeldOut(every=every))
        assert steps <= _steps(plan.event, plan) <= steps + 1
        assert plan.event_after(_steps(plan.event, plan)) == plan.event

    def test_a_secret_number_of_records_needs_a_public_one(self):
        with pytest.raises(ArgumentError, match="expected_records"):
            attrs.evolve(PLAN, expected_batch=10, relation=ADD_REMOVE)
        known = attrs.evolve(SETTINGS, expected_records=50)
        attrs.evolve(PLAN, expected_batch=10, relation=ADD_REMOVE, held_out=known)

    def test_a_bound_goes_with_a_loss(self):
        for wrong in ({"metric": "loss"}, {"bound": 2.0}):
            with pytest.raises(ArgumentError, match="bound"):
                HeldOut(every=1, **wrong)


class Fixed(nn.Module):
    """Says of each record what it holds, whatever was learned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return inputs * self.scale.clamp(1, 1)


def records(data, settings=SETTINGS, seed=0, **options):
    plan = attrs.evolve(PLAN, held_out=settings)
    step = Step(plan, Fixed(), LOSS, expected_batch=10, key=Key.from_seed(seed))
    loss = options.pop("loss", LOSS)
    return HeldOutRecords.of(plan, data, loss, **options), step


def total(data, *args, **options):
    held, step = records(data, *args, **options)
    return held._sum(step)


def guesses(rights, of=2):
    """Records of class 0, of which so many get the right label."""
    scores = torch.zeros(len(rights), of)
    scores[:, 0] = torch.tensor([1.0 if right else -1.0 for right in rights])
    return scores, torch.zeros(len(rights), dtype=torch.long)


class TestOneRecord:
    def test_adds_half_of_the_bound_at_most(self):
        some = total(guesses([1, 1, 0]))
        assert some == 0.5
        assert total(guesses([1, 1, 0, 1])) - some == 0.5
        assert total(guesses([1, 1, 0, 0])) - some == -0.5

    def test_the_sum_is_rounded_by_less_than_the_noise_pays_for(self):
        """Single precision would round the sum of so many records by 1e-4 of half the bound."""
        loss = HeldOut(
            every=1, metric="loss", bound=0.6, noise_multiplier=1e-9, expected_records=1.0
        )
        sums = []
        for count in (3_000, 3_001):
            held, step = records(
                guesses([1] * count), loss, loss=lambda outputs, _: 0 * outputs.sum(1) + 0.6
            )
            sums.append(held.release(step, Key.from_seed(0))["held_out_loss"])
        assert abs(sums[1] - sums[0] - 0.3) <= 0.3e-6

    def test_a_loss_is_clipped_and_what_is_no_number_counts_as_the_bound(self):
        settings = HeldOut(every=1, metric="loss", bound=2.0)
        losses = torch.tensor([0.5, 9.0, -3.0, math.nan, math.inf, -math.inf])
        data = losses[:, None], torch.zeros(6)
        found = total(data, settings, loss=lambda outputs, targets: outputs[:, 0])
        assert found == (0.5 + 2 + 0 + 2 + 2 + 0) - 6

    def test_one_that_cannot_be_read_is_absent_and_one_that_is_rejected_is_wrong(self):
        scores, labels = guesses([1, 1, 1, 1])
        items = [(row, label) for row, label in zip(scores, labels, strict=True)]
        odd = total([*items, ("no row", 0)], example=items[0])
        assert odd == total(items, example=items[0]) == 2.0
        settings = HeldOut(every=1, metric="loss", bound=1.0)
        beyond = torch.cat([labels, torch.tensor([7])])
        rows = torch.cat([scores, scores[:1]])
        assert total((rows, beyond), settings) - total((scores, labels), settings) == 0.5

    def test_ignored_labels_of_a_sequence_do_not_count(self):
        scores = torch.zeros(1, 4, 3)
        scores[0, :, 1] = 1.0
        labels = torch.tensor([[1, 2, -100, 1]])
        assert total((scores, labels)) == pytest.approx(2 / 3 - 0.5)

    def test_scores_that_are_no_classes_are_refused_before_anything_is_charged(self):
        one = torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)
        held, step = records(one)
        with pytest.raises(ArgumentError, match="metric='loss'"):
            held.rehearse(step)


class TestPeople:
    IDS = ("a", "b", "a", "c", "a", "b")

    def both(self, rights, ids, trained=("y", "z")):
        units = Units.of([None, None], Unit.given(list(trained), None, None))
        return total(guesses(rights), trained=units, ids=list(ids))

    def test_a_person_counts_once_by_the_mean_of_her_records(self):
        rights = [1, 0, 1, 1, 0, 1]
        assert self.both(rights, self.IDS) == pytest.approx((2 / 3 - 0.5) + 0 + 0.5)
        without = [(r, i) for r, i in zip(rights, self.IDS, strict=True) if i != "a"]
        rest = self.both(*zip(*without, strict=True))
        assert abs(self.both(rights, self.IDS) - rest) <= 0.5
        turned = self.both(rights[::-1], self.IDS[::-1])
        assert turned == self.both(rights, self.IDS)

    def test_a_person_who_is_trained_on_is_left_out(self):
        rights = [1, 0, 1, 1, 0, 1]
        found = self.both(rights, self.IDS, trained=["a", "z"])
        without = self.both([0, 1, 1], ["b", "c", "b"])
        assert found == without
        assert self.both([1, 1], ["a", "z"], trained=["a", "z"]) == 0  # nobody is left

    def test_ids_of_their_own_are_needed_without_a_column(self):
        data = torch.randn(20, 2), torch.zeros(20, dtype=torch.long)
        with pytest.raises(ArgumentError, match="held_out_unit"):
            fit(PLAN, nn.Linear(2, 2), LOSS, data, unit=range(20), held_out_set=data, lr=0.1)


class TestNoise:
    def draws(self, settings, data, count=120, **options):
        held, step = records(data, settings, **options)
        found = []
        for number in range(1, count + 1):
            step.state.move_to(number)
            found.append(held.release(step, Key.from_seed(5)))
        name = settings.name
        assert {each[f"{name}_noise"] for each in found} == {settings.deviation(held.size)}
        return torch.tensor([each[name] for each in found])

    def test_it_has_the_deviation_that_is_charged(self):
        """Seeded: the same in every run."""
        draws = self.draws(SETTINGS, guesses([1] * 15 + [0] * 5))
        assert SETTINGS.deviation(20) == 3.0 * 0.5 / 20
        assert float(draws.std()) == pytest.approx(0.075, rel=0.2)
        assert float(draws.mean()) == pytest.approx(0.75, abs=0.03)
        assert len(set(draws.tolist())) > 20

    def test_so_has_that_of_a_loss_divided_by_the_public_number(self):
        settings = HeldOut(
            every=1, metric="loss", bound=4.0, noise_multiplier=2.0, expected_records=10
        )
        losses = torch.full((20, 1), 1.5)
        draws = self.draws(
            settings, (losses, torch.zeros(20)), loss=lambda outputs, targets: outputs[:, 0]
        )
        assert float(draws.std()) == pytest.approx(2.0 * 2.0 / 10, rel=0.2)
        assert float(draws.mean()) == pytest.approx(2.0 + 20 * (1.5 - 2.0) / 10, abs=0.15)


def data(count, seed=0):
    made = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return made, (made[:, 0] > 0).long()


def trained(plan=PLAN, *, held=None, model=None, reporting=None, seed=3, **options):
    torch.manual_seed(1)
    model = nn.Linear(3, 2) if model is None else model
    return fit(
        plan, model, LOSS, data(100), held_out_set=data(60, 1) if held is None else held, lr=0.5,
        execution=Execution(seed=seed), reporting=reporting, **options,
    )  # fmt: skip


def _die():
    raise KeyboardInterrupt


class TestRun:
    def test_shows_and_writes_each_release_with_its_noise_and_no_other(self, tmp_path):
        fitted = trained(reporting=Reporting(out=tmp_path, evaluate_every=5, progress=False))
        shown = {entry.step: entry.evaluation for entry in fitted.history}
        logged = {"trim", "noise", "held_out_accuracy", "held_out_accuracy_noise"}
        assert set(fitted.history[-1].numbers()) == logged
        assert sorted(step for step, found in shown.items() if found) == [4, 8, 10]
        assert shown[8]["held_out_accuracy_noise"] == SETTINGS.deviation(60)
        assert '"held_out_accuracy_noise"' in (tmp_path / "metrics.jsonl").read_text()

    def test_is_the_same_after_a_kill_and_with_other_held_out_records_takes_a_new_key(
        self, tmp_path, monkeypatch
    ):
        save = Run._save
        for folder in ("same", "other"):
            monkeypatch.setattr(Run, "_save", lambda run: _die() if run.taken == 8 else save(run))
            with pytest.raises(KeyboardInterrupt):  # after the release, before it is saved
                trained(reporting=Reporting(out=tmp_path / folder, progress=False))
            monkeypatch.setattr(Run, "_save", save)
        whole = {m.step: m.evaluation for m in trained().history}
        again = Reporting(out=tmp_path / "same", resume=True, progress=False)
        same = trained(reporting=again)
        assert same.lost == 0
        assert {m.step: m.evaluation for m in same.history if m.evaluation} == {
            step: whole[step] for step in (8, 10)
        }
        again = Reporting(out=tmp_path / "other", resume=True, progress=False)
        with pytest.warns(RuntimeWarning, match="the records"):
            other = trained(held=data(60, 2), reporting=again)
        assert other.lost == 1
        assert [m.step for m in other.history if m.evaluation] == [10]

    @pytest.mark.parametrize("change", ["average", "people"])
    def test_another_evaluated_model_or_other_people_take_a_new_key(
        self, tmp_path, monkeypatch, change
    ):
        people = {"unit": range(100), "held_out_unit": range(100, 160), "records_per_person": 1}
        changed = {"average": 0.5} if change == "average" else {"unit": range(60, 160)}
        save = Run._save
        monkeypatch.setattr(Run, "_save", lambda run: _die() if run.taken == 8 else save(run))
        with pytest.raises(KeyboardInterrupt):  # after the release, before it is saved
            trained(reporting=Reporting(out=tmp_path, progress=False), **people)
        monkeypatch.setattr(Run, "_save", save)
        again = Reporting(out=tmp_path, resume=True, progress=False)
        with pytest.warns(RuntimeWarning, match="new key"):
            assert trained(reporting=again, **people | changed).lost == 1

    @pytest.mark.thorough
    def test_gains_steps_only_where_both_parts_pay_for_all_releases(self, tmp_path):
        for every, fits in ((5, True), (4, False)):
            settings = HeldOut(every=every, noise_multiplier=30.0)
            plans = [attrs.evolve(PLAN, held_out=settings, steps=steps) for steps in (10, 20)]
            paid = [2 * plans[0].held_out.releases(10), plans[1].held_out.releases(20)]
            assert (paid[0] >= paid[1] and 10 % every == 0) is fits
            folder = tmp_path / str(every)
            budget = {"epsilon": 99.0, "delta": 1e-4, "relation": ZERO_OUT}
            with prudent.Ledger(tmp_path / f"{every}.db", **budget) as ledger:
                trained(plans[0], reporting=Reporting(out=folder), ledger=ledger, delta=1e-5)
                again = {"reporting": Reporting(out=folder, resume=True), "ledger": ledger}
                if fits:
                    assert trained(plans[1], delta=1e-5, **again).history[-1].step == 20
                    charged = sum(_steps(c.event, plans[1]) for c in ledger.history())
                    assert charged == 20
                else:
                    with pytest.raises(ArgumentError, match="steps"):
                        trained(plans[1], delta=1e-5, **again)

    def test_needs_both_a_plan_and_records(self):
        for plan, held in ((plain(), data(5)), (PLAN, None)):
            with pytest.raises(ArgumentError, match="held_out"):
                fit(plan, nn.Linear(3, 2), LOSS, data(100), held_out_set=held, lr=0.1)


class TestBest:
    def test_patience_ends_a_run_and_the_best_model_is_returned(self):
        plan = attrs.evolve(PLAN, steps=60)
        kept = {}
        fitted = trained(
            plan,
            reporting=Reporting(
                patience=2, keep_best=True,
                callbacks=[lambda model, m: kept.setdefault(m.step, model.weight.clone())],
            ),
        )  # fmt: skip
        values = {m.step: m.evaluation["held_out_accuracy"] for m in fitted.history if m.evaluation}
        best = max(values, key=values.__getitem__)
        assert fitted.best_step == best
        assert fitted.history[-1].step == best + 8 < 60
        assert torch.equal(fitted.model.weight, kept[best])

    def test_a_stopped_run_stays_stopped_when_it_is_resumed(self, tmp_path):
        plan = attrs.evolve(PLAN, steps=60)
        first = trained(plan, reporting=Reporting(patience=2, keep_best=True, out=tmp_path))
        again = trained(
            plan, reporting=Reporting(patience=2, keep_best=True, out=tmp_path, resume=True)
        )
        assert again.history == []
        assert again.best_step == first.best_step
        assert torch.equal(again.model.weight, first.model.weight)

    def test_a_model_is_the_best_only_if_it_was_kept(self, tmp_path):
        plan = attrs.evolve(PLAN, steps=60)
        for keeps, then in ((True, False), (False, True)):
            first, again = (
                Reporting(patience=2, keep_best=keep, out=tmp_path / str(keeps), resume=resume)
                for keep, resume in ((keeps, False), (then, True))
            )
            trained(plan, reporting=first)
            last = trained(plan, reporting=again)
            kept = torch.load(tmp_path / str(keeps) / "checkpoint.pt", weights_only=True)
            step = kept["step"] if last.best_step is None else last.best_step
            assert (step == kept["step"]) == torch.equal(last.model.weight, kept["model"]["weight"])

    @pytest.mark.parametrize("evaluate", [None, lambda model: {"loss": 1.0}])
    def test_a_wrong_name_is_refused_before_anything_is_charged(self, tmp_path, evaluate):
        reporting = Reporting(monitor="los", patience=1, evaluate=evaluate)
        with prudent.Ledger(tmp_path / "a.db", epsilon=9, delta=1e-4, relation=ZERO_OUT) as ledger:
            with pytest.raises(ArgumentError, match="monitor"):
                trained(reporting=reporting, ledger=ledger, delta=1e-5)
            assert ledger.history() == []

    def test_a_public_result_can_be_followed_and_a_wrong_name_is_refused(self):
        losses = iter([3.0, 2.0, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0, 9.0, 9.0, 9.0])
        reporting = Reporting(
            evaluate=lambda model: {"loss": next(losses)}, monitor="loss", patience=2,
            evaluate_every=1,
        )  # fmt: skip
        # The first call is the rehearsal.
        fitted = fit(
            plain(), nn.Linear(3, 2), LOSS, data(100), lr=0.1, reporting=reporting,
            execution=Execution(seed=1),
        )  # fmt: skip
        assert [m.step for m in fitted.history] == [1, 2, 3, 4]
        with pytest.raises(ArgumentError, match="monitor"):
            trained(reporting=Reporting(monitor="los", patience=1))
        with pytest.raises(ArgumentError, match="monitor"):
            fit(
                plain(), nn.Linear(3, 2), LOSS, data(9), lr=0.1, reporting=Reporting(patience=1)
            )  # fmt: skip
