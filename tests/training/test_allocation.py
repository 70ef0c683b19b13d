"""Batches in which every record is once an epoch."""

import attrs
import dp_accounting as dp
import pytest

torch = pytest.importorskip("torch")

import prudent  # noqa: E402
from prudent._validate import ArgumentError  # noqa: E402
from prudent.accounting import RandomAllocationDpEvent  # noqa: E402
from prudent.training import Key, PoissonSampler  # noqa: E402
from prudent.training.run.charging import _steps  # noqa: E402

PLAN = prudent.Plan(
    sampling_rate=1 / 8,
    steps=20,
    expected_batch=10,
    aggregation=prudent.Sum(clip=1.0, noise_multiplier=1.5),
    sampling="random-allocation",
)


def sampler(records: int = 83, epoch: int = 8, seed: int = 1) -> PoissonSampler:
    return PoissonSampler(
        records, 1.0, num_bands=epoch, allocates=True, key=Key.from_seed(seed), physical_batch=8
    )


def drawn(sampler: PoissonSampler, step: int) -> list[int]:
    batch = sampler.batch(step)
    return sorted(batch.ids[batch.valid].tolist())


def test_every_record_is_in_one_batch_of_each_epoch() -> None:
    one = sampler()
    epochs = [[drawn(one, 8 * epoch + step) for step in range(8)] for epoch in range(20)]
    for batches in epochs:
        assert sorted(id for batch in batches for id in batch) == list(range(83))
    assert len({str(batches) for batches in epochs}) == 20  # drawn anew for each
    assert drawn(one, 3) == epochs[0][3]  # of the key and the step alone, in any order


def test_parts_that_stay_would_be_noticed() -> None:
    stays = PoissonSampler(83, 1.0, num_bands=8, key=Key.from_seed(1), physical_batch=8)
    assert drawn(stays, 0) == drawn(stays, 8)


def test_a_record_changes_nothing_about_the_batches_of_others() -> None:
    more, fewer = sampler(84), sampler(83)
    for step in range(24):
        assert [id for id in drawn(more, step) if id != 83] == drawn(fewer, step)


def test_batches_of_records_are_uniform_and_independent() -> None:
    one = sampler(records=4000, epoch=5)
    counts = torch.zeros(5, 5)
    places = []
    for epoch in range(2):
        place = torch.empty(4000, dtype=torch.long)
        for step in range(5):
            place[drawn(one, 5 * epoch + step)] = step
        places.append(place)
    counts.index_put_((places[0], places[1]), torch.ones(4000), accumulate=True)
    assert float(((counts - 160) ** 2 / 160).sum()) < 75  # chi-squared, 24 degrees: 3e-7


def test_the_event_is_of_whole_epochs_and_of_the_rest() -> None:
    release = dp.GaussianDpEvent(1.5)
    whole, rest = RandomAllocationDpEvent(release, 8), RandomAllocationDpEvent(release, 4)
    sampled = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.5, rest), 1)
    assert PLAN.event == dp.ComposedDpEvent([dp.SelfComposedDpEvent(whole, 2), sampled])
    assert PLAN.event_after(8) == dp.SelfComposedDpEvent(whole, 1)
    assert [_steps(PLAN.event_after(n), PLAN) for n in (1, 8, 20)] == [1, 8, 20]
    poisson = attrs.evolve(PLAN, sampling="poisson")
    assert PLAN.epsilon_after(16, 1e-5) < poisson.epsilon_after(16, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_rate": 0.3},
        {"num_bands": 2},
        {"watch": prudent.LossRelease(loss_every=2, bound=1.0)},
        {
            "aggregation": prudent.ProposeTestRelease(
                clip=1.0, propose=0.5, noise_multiplier=1.0, test=prudent.GaussianTest(4.0)
            )
        },
    ],
)
def test_what_has_no_price_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ArgumentError) as caught:
        attrs.evolve(PLAN, **change)
    assert caught.value.argument in ("sampling", "num_bands")


def test_fit_takes_the_plan_and_other_loops_refuse_it() -> None:
    features, labels = torch.randn(83, 3), torch.zeros(83, dtype=torch.long)
    model = torch.nn.Linear(3, 2)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    fitted = prudent.fit(PLAN, model, loss, (features, labels), lr=0.1)
    assert fitted is not None
    data = torch.utils.data.TensorDataset(features, labels)
    with pytest.raises(ValueError, match="random-allocation"):
        prudent.make_private(
            torch.nn.Linear(3, 2),
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.utils.data.DataLoader(data, batch_size=10),
            plan=PLAN,
        )
