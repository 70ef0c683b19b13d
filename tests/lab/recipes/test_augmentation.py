"""Views of a record: one gradient, which is the mean over them before anything is clipped."""

import pytest
import torch
from torch.nn import functional

from prudent.training import Execution, Plan, Sum, fit
from prudent.training.gradients import BookKeeping
from prudent_lab.recipes.digits import LinearOnRows, loss_over_views, shifted, shifts
from tests.raising import refused


def test_shifts_move_images_and_bring_zeros():
    image = torch.arange(1.0, 10.0).view(1, 1, 3, 3)
    assert torch.equal(shifted(image, (0, 0)), image)
    down = torch.tensor([[0.0, 0, 0], [1, 2, 3], [4, 5, 6]])
    assert torch.equal(shifted(image, (1, 0))[0, 0], down)
    left = torch.tensor([[2.0, 3, 0], [5, 6, 0], [8, 9, 0]])
    assert torch.equal(shifted(image, (0, -1))[0, 0], left)
    assert shifts(1) == ((0, 0),)
    assert len(set(shifts(9))) == 9
    with refused("copies"):
        shifts(10)


def test_the_norm_of_a_record_is_that_of_its_mean_gradient():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 4, 5, generator=generator)
    labels = torch.arange(6) % 3
    model = LinearOnRows(5, 3)
    torch.nn.init.normal_(model.dense.weight, generator=generator)
    norms = (
        BookKeeping(model, loss_over_views)
        .read(dict(model.named_parameters()), lambda: (rows, labels))
        .norms
    )
    for row, label, norm in zip(rows, labels, norms, strict=True):
        mean = functional.cross_entropy(model(row), label.expand(4))
        parts = torch.autograd.grad(mean, list(model.parameters()))
        torch.testing.assert_close(torch.cat([p.flatten() for p in parts]).norm(), norm)


def test_many_views_of_a_record_move_the_sum_by_at_most_the_clip():
    """One step without momentum from zero: its length is that of one record's contribution."""
    rows = 100 * torch.randn(1, 50, 8, generator=torch.Generator().manual_seed(0))
    model = LinearOnRows(8, 3)
    plan = Plan(
        sampling_rate=1.0,
        steps=1,
        expected_batch=1,
        aggregation=Sum(clip=0.25, noise_multiplier=1e-6),
    )
    fit(
        plan,
        model,
        loss_over_views,
        (rows, torch.tensor([1])),
        lr=1.0,
        execution=Execution(seed=0),
    )
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]).norm()
    assert moved == pytest.approx(0.25, rel=1e-3)


def test_outputs_without_views_have_the_usual_loss():
    outputs, labels = torch.randn(5, 3), torch.arange(5) % 3
    usual = functional.cross_entropy(outputs, labels, reduction="none")
    torch.testing.assert_close(loss_over_views(outputs, labels), usual)
    torch.testing.assert_close(loss_over_views(torch.stack([outputs, outputs], 1), labels), usual)
