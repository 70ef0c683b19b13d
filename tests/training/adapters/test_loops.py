"""Loops that `make_private` must refuse, and what they have in common with those it must not."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import prudent
from prudent.training.gradients.output_guard import (
    Replay,
    Traced,
    as_outputs,
    batch_of,
    check_loss,
    node_of,
    reduction_of,
    traced_batch,
)
from prudent.training.keystream import Key

RECORDS, CLASSES = 64, 3
WEIGHTS = torch.tensor([1.0, 2.0, 5.0])


def private(reduction="mean", targets=None, model=None, noise=1.0, rate=0.5):
    torch.manual_seed(0)
    model = nn.Linear(4, CLASSES) if model is None else model
    labels = torch.arange(RECORDS) % CLASSES if targets is None else targets
    data = TensorDataset(torch.randn(RECORDS, 4), labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=32)
    plan = prudent.Plan(
        sampling_rate=rate, steps=4, aggregation=prudent.Sum(clip=1.0, noise_multiplier=noise)
    )
    same = {"loss_reduction": reduction, "key": Key.from_seed(1)}
    return prudent.make_private(model, optimizer, loader, plan=plan, **same)


def run(loss, reduction="mean", inputs=lambda x: x, targets=None):
    model, optimizer, loader = private(reduction, targets)
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(inputs(x)), y).backward()
        optimizer.step()
    return optimizer.steps


def permuted(x):
    return x[torch.randperm(len(x))]


def weighted(o, y):
    losses = functional.cross_entropy(o, y, reduction="none")
    return (WEIGHTS[y] * losses).sum() / WEIGHTS[y].sum()


def weighted_by_aten(o, y):
    logs = torch.log_softmax(o, 1)
    total, _ = torch.ops.aten.nll_loss_forward(logs, y, WEIGHTS, 1, -100)
    return total


def weighted_as_plain(o, y):
    return functional.cross_entropy(o.as_subclass(torch.Tensor), y, WEIGHTS)


def contrastive(o, y):
    return functional.cross_entropy(o @ o.T, torch.arange(len(o)))


def above_mean(o, y):
    losses = functional.cross_entropy(o, y, reduction="none")
    return functional.relu(losses - losses.mean()).mean()


def losses_of(o, y):
    return functional.cross_entropy(o, y, reduction="none")


def gradient_penalty(o, y):
    loss = functional.cross_entropy(o, y)
    (gradient,) = torch.autograd.grad(loss, o, create_graph=True)
    return loss + gradient.square().sum()


MIXING = {
    "class weights": lambda o, y: functional.cross_entropy(o, y, WEIGHTS),
    "class weights by hand": weighted,
    "class weights by aten": weighted_by_aten,
    "mean of the right ones": lambda o, y: (
        (functional.cross_entropy(o, y, reduction="none") * (y > 0)).sum() / (y > 0).sum()
    ),
    "normalised outputs": lambda o, y: functional.cross_entropy(o - o.mean(0), y),
    "contrastive": contrastive,
    "hardest record": lambda o, y: functional.cross_entropy(o, y, reduction="none").max(),
    "median": lambda o, y: functional.cross_entropy(o, y, reduction="none").median(),
    "hardest half": lambda o, y: (
        functional.cross_entropy(o, y, reduction="none").topk(len(o) // 2).values.mean()
    ),
    "easiest few": lambda o, y: (
        functional.cross_entropy(o, y, reduction="none").sort().values[:3].mean()
    ),
    "clamped at their mean": above_mean,
    "above a threshold": lambda o, y: losses_of(o, y)[losses_of(o, y) > 0.5].mean(),
    "above their mean": lambda o, y: (
        losses_of(o, y) * (losses_of(o, y) > losses_of(o, y).mean())
    ).mean(),
    "a divisor that no finite output changes": lambda o, y: (
        1 - (o.softmax(1) * functional.one_hot(y, CLASSES)).sum() / o.softmax(1).sum()
    ),
    "shifted by the largest": lambda o, y: functional.cross_entropy(o - o.max(), y),
    "above a threshold that is far away": lambda o, y: torch.where(
        o.abs().max() > 50, 10 * losses_of(o, y), losses_of(o, y)
    ).mean(),
    "a singular matrix, if records are made up": lambda o, y: (
        functional.cross_entropy(o, y) * torch.linalg.cholesky(o.T.cov()).trace()
    ),
    "hardest of a list": lambda o, y: torch.stack([*losses_of(o, y)]).amax() / len(o),
    "first record": lambda o, y: losses_of(o, y)[0] / len(o),
    "means of means": lambda o, y: functional.cross_entropy(o, y) / len(y),
    "divided by a square of the rows": lambda o, y: losses_of(o, y).sum() / len(y) ** 2,
    "an inverse square of the rows": lambda o, y: losses_of(o, y).sum() * (1 / len(y) ** 2),
    "numbers instead of NaN": lambda o, y: functional.cross_entropy(o, y).nan_to_num(),
    "classes in the order of the batch": lambda o, y: functional.cross_entropy(
        o, torch.unique(y, return_inverse=True)[1]
    ),
    "largest label": lambda o, y: functional.mse_loss(o[:, 0], y / y.max()),
    "running sums": lambda o, y: losses_of(o, y).cumsum(0).mean(),
    "penalty of a gradient": gradient_penalty,
}


@pytest.mark.parametrize("name", MIXING)
def test_losses_that_mix_records_are_refused(name):
    with pytest.raises(prudent.ArgumentError, match=r"reduction='none' and then \.mean"):
        run(MIXING[name])


@pytest.mark.parametrize("records", [19, 40, 64])
def test_a_choice_of_records_is_noticed_in_batches_of_any_size(records):
    outputs = as_outputs(torch.randn(records, CLASSES, requires_grad=True))
    labels = traced_batch(torch.arange(records) % CLASSES)
    loss = MIXING["above their mean"](outputs, labels)
    assert reduction_of(Replay(node_of(loss))) == "mixed"


def test_weights_that_are_given_to_backward_are_of_the_loss():
    model, _, loader = private()
    x, y = next(iter(loader))
    losses = losses_of(model(x), y)
    with pytest.raises(prudent.ArgumentError, match=r"reduction='none' and then \.mean"):
        losses.backward(losses.softmax(0))


@pytest.mark.parametrize("hook", [lambda g: g / g.norm(), lambda g: g.mul_(g.abs().max())])
def test_a_hook_that_changes_gradients_is_refused(hook):
    def loss(o, y):
        o.register_hook(hook)
        return functional.cross_entropy(o, y)

    with pytest.raises(prudent.ArgumentError, match="hook that changes them"):
        run(loss)


def test_a_hook_may_look_at_gradients():
    seen = []

    def loss(o, y):
        o.register_hook(lambda g: seen.append(float(g.norm())))
        return functional.cross_entropy(o, y)

    assert run(loss) == len(seen) > 0


def test_ignored_labels_count_in_a_mean_whose_arguments_are_named():
    outputs = as_outputs(torch.randn(10, CLASSES, requires_grad=True))
    labels = torch.arange(10) % CLASSES
    labels[:5] = -100
    named = functional.cross_entropy(input=outputs, target=labels)
    whole = functional.cross_entropy(outputs, labels)
    assert torch.equal(named.detach(), whole.detach())


@pytest.mark.parametrize("named", [False, True])
def test_an_output_that_is_no_probability_changes_nothing_for_others(named):
    gradients = []
    for wrong in (False, True):
        made = torch.full((10,), 0.3)
        made[0] = torch.nan if wrong else 0.3
        probabilities = made.requires_grad_()
        outputs, goals = as_outputs(probabilities), torch.ones(10)
        if named:
            loss = functional.binary_cross_entropy(input=outputs, target=goals)
        else:
            loss = functional.binary_cross_entropy(outputs, goals)
        assert reduction_of(Replay(node_of(loss))) == "mean"
        gradients.append(torch.autograd.grad(loss, probabilities)[0])
    assert torch.equal(gradients[0][1:], gradients[1][1:])
    assert gradients[1][0] == 0


def test_a_loss_that_hides_what_it_is_of_is_refused():
    with pytest.raises(ValueError, match=r"Expected loss.backward\(\) of a loss"):
        run(weighted_as_plain)


def divided(number):
    """A loss divided by a number that a function makes of the outputs and labels on the host."""
    return lambda o, y: functional.cross_entropy(o, y) / number(o, y)


def written(write):
    """A loss with weights that a function writes to a tensor that the loop has made."""

    def loss(o, y):
        weights = torch.ones(len(o))
        returned = write(weights, o.detach().abs().max(), o.detach())
        return ((weights if returned is None else returned) * losses_of(o, y)).mean()

    return loss


def early_part(weights, largest, _):
    part = weights.view(-1)
    weights.mul_(largest)
    return part


def stale_part(weights, largest, o):
    whole = torch.ones_like(o)
    part = whole.view(-1)
    whole.mul_(largest)
    return part[0]


WRITTEN = {
    "a slice": lambda w, largest, o: w.__setitem__(slice(None), largest),
    "a copy": lambda w, largest, o: (w.copy_(largest.expand(len(w))), w)[1],
    "a view": lambda w, largest, o: w.view(-1).__setitem__(slice(None), largest),
    "a row": lambda w, largest, o: (w[0].copy_(largest), w)[1],
    "data": lambda w, largest, o: (w.data.fill_(largest), w)[1],
    "out": lambda w, largest, o: (torch.amax(o, 1, out=w), w * w.max())[1],
    "a view made before": early_part,
    "a view of a traced tensor made before": stale_part,
    "a view of a traced tensor": lambda w, largest, o: (
        (t := torch.ones_like(o)).view(-1).__setitem__(slice(None), largest) or t[:, 0]
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_to_a_tensor_of_the_loop_is_followed_or_refused(name):
    with pytest.raises(prudent.ArgumentError, match=r"after backward\(\)|reduction='none'"):
        run(written(WRITTEN[name]))


def raised(labels):
    try:
        WEIGHTS.index_select(0, labels)
    except ValueError:
        return 10
    return 1


READ = {
    "branch": lambda o, y: functional.cross_entropy(o, y) * (10 if o.max() > 50 else 1),
    "branch of a number": divided(lambda o, y: 2 if o.max().item() > 5 else 3),
    "branch of an integer": divided(lambda o, y: 2 if int(o.max()) > 5 else 3),
    "branch of a list": divided(lambda o, y: 2 if max(y.tolist()) > 5 else 3),
    "branch of a comparison": divided(lambda o, y: 2 if torch.equal(o, o.clamp(-9, 9)) else 3),
    "branch of a number of rows": divided(lambda o, y: 2 if len(o[o[:, 0] > 9]) else 3),
    "an error that a label raises": lambda o, y: functional.cross_entropy(o, y) * raised(y - 9),
    "loop over what is selected": divided(lambda o, y: 3 * 2 ** len([*(o > 9).nonzero()])),
    "Python's max": lambda o, y: (
        max(losses_of(one[None], label[None])[0] for one, label in zip(o, y, strict=True)) / len(o)
    ),
    "Python's sorted": lambda o, y: sum(sorted(losses_of(o, y))[-8:]) / len(o),
    "places of the hardest": lambda o, y: losses_of(o, y)[
        losses_of(o, y).argsort()[-8:].tolist()
    ].mean(),
    "float": divided(lambda o, y: float(o.max())),
    "item": divided(lambda o, y: 1 + o.abs().sum().item() ** 2),
    "tolist": divided(lambda o, y: max(map(max, o.tolist()))),
    "numpy": lambda o, y: functional.cross_entropy(o, y) * o.detach().numpy().mean(),
    "array": lambda o, y: functional.cross_entropy(o, y) * float(np.asarray(o.detach()).mean()),
    "tensor of numpy": divided(lambda o, y: torch.tensor(o.detach().numpy().mean())),
    "detached": divided(lambda o, y: o.max().detach()),
    "text": divided(lambda o, y: float(f"{o.max():.9f}")),
    "labels": divided(lambda o, y: float(y.numpy().std())),
    "weights by numpy": lambda o, y: (
        functional.cross_entropy(o, y, reduction="none")
        * torch.from_numpy(np.bincount(y.numpy(), minlength=CLASSES) / len(y)).float()[y]
    ).mean(),
    "weights of rows": lambda o, y: (
        functional.cross_entropy(o, y, reduction="none")
        * torch.from_numpy(o.detach().numpy()[:, 0] - o.detach().numpy()[:, 0].mean())
    ).mean(),
    "a number of labels": lambda o, y: (
        functional.cross_entropy(o, y, reduction="none") * (len(y[y > 0]) + 0.5)
    ).mean(),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("name", READ)
def test_a_loss_with_a_number_that_was_read_from_the_batch_is_refused(name):
    with pytest.raises(prudent.ArgumentError, match=r"test_loops\.py:\d+.*after backward\(\)"):
        run(READ[name])


def test_a_branch_on_inputs_is_refused_before_the_model_and_after_it():
    for inputs in (
        lambda x: x / 255 if x.max() > 5 else x,
        lambda x: x * (1 + int(x.numpy().max() > 5)),
        lambda x: [x, x / 255][int(x.max())] if x.max().item() > 5 else x,
    ):
        with pytest.raises(prudent.ArgumentError, match=r"test_loops\.py"):
            run(functional.cross_entropy, inputs=inputs)


def shown(o, y, loss):
    """What loops show of a batch before backward, as Opacus's examples do."""
    guesses = np.argmax(o.detach().cpu().numpy(), axis=1)
    return (guesses == y.detach().cpu().numpy()).mean(), loss.item(), f"{loss:.2f}"


def test_a_weight_that_changes_from_step_to_step_is_public():
    """A schedule, which a loop may compute as it likes; it may show values of the whole loss."""
    weights = iter((1.0, 0.8, 0.64, 0.512))
    annealed = divided(lambda o, y: next(weights))
    assert run(annealed) > 0
    weights = iter((1.0, 0.8, 0.64, 0.512))
    assert run(lambda o, y: (annealed(o, y), o.max().item())[0]) > 0


def checked(o, y):
    loss = functional.cross_entropy(o, y)
    assert not loss.isnan()
    if not torch.isfinite(loss) or loss > 1e6:
        raise ValueError
    return loss / 1


def counted(o, y):
    right = (o.argmax(1) == y).sum().item()
    assert 0 <= right <= len(y)
    assert 0 <= float((torch.max(o.data, 1)[1] == y).float().mean()) <= 1
    return functional.cross_entropy(o, y)


def one_hot(o, y):
    targets = torch.zeros(len(y), CLASSES)
    targets.scatter_(1, y[:, None], 1)
    targets[torch.arange(len(y)), y] = 0.9
    return -(targets * o.log_softmax(1)).sum(1).mean()


def added_up(o, y):
    loss = torch.zeros(())
    loss += functional.cross_entropy(o, y)
    loss += 0.1 * o.square().mean()
    return loss


def padded(o, y):
    y[y == 0] = -100
    return functional.cross_entropy(o, y)


@pytest.mark.parametrize("loss", [checked, counted, one_hot, added_up, padded])
def test_loops_that_read_or_write_what_changes_no_gradient_go_on(loss):
    assert run(loss) > 0


def test_batches_and_outputs_can_be_copied_and_saved():
    model, _, loader = private()
    x, y = next(iter(loader))
    outputs = model(x)
    for made in (copy.deepcopy(y), pickle.loads(pickle.dumps(outputs.detach()))):
        assert type(made) is torch.Tensor


BY_LABEL = {
    "gather": lambda o, y: -o.log_softmax(1).gather(1, y[:, None]).mean(),
    "named gather": lambda o, y: -o.log_softmax(1).gather(dim=-1, index=y[:, None]).mean(),
    "weights": lambda o, y: (WEIGHTS[y] * losses_of(o, y)).mean(),
    "places": lambda o, y: -o.log_softmax(1)[torch.arange(len(y)), y].mean(),
    "one-hot": lambda o, y: -(functional.one_hot(y, CLASSES) * o.log_softmax(1)).sum(1).mean(),
    "other labels": lambda o, y: functional.cross_entropy(o, torch.tensor([1, 2, 0])[y]),
}


@pytest.mark.parametrize("label", [-100, CLASSES])
@pytest.mark.parametrize("name", BY_LABEL)
def test_a_label_out_of_range_leaves_out_its_record(name, label):
    def released(labels):
        model, optimizer, loader = private(targets=labels, noise=1e-6, rate=1.0)
        x, y = next(iter(loader))
        BY_LABEL[name](model(x), y).backward()
        optimizer.step()
        return torch.cat([p.grad.flatten() for p in model.parameters()]) * RECORDS

    labels = torch.arange(RECORDS) % CLASSES
    wrong = labels.clone()
    wrong[5] = label
    assert 0.01 < float((released(labels) - released(wrong)).norm()) <= 1 + 1e-5


def test_no_error_quotes_a_label():
    labels = torch.arange(RECORDS) % CLASSES
    labels[:] = -77
    for loss in (
        lambda o, y: (WEIGHTS.index_select(0, y) * losses_of(o, y)).mean(),
        lambda o, y: -(torch.zeros_like(o).scatter_(1, y[:, None], 1) * o).mean(),
    ):
        with pytest.raises(ValueError, match="Expected indices in range") as error:
            run(loss, targets=labels)
        assert "77" not in str(error.value)
        assert error.value.__suppress_context__ or error.value.__context__ is None


class Scored(nn.Linear):
    def forward(self, x):
        outputs = super().forward(x)
        return outputs.square().mean(), outputs


@pytest.mark.parametrize(
    "loss",
    [
        lambda own, o: own**2,
        lambda own, o: own * o.max().detach(),
        lambda own, o: own.exp(),
        lambda own, o: 10 * own if o.max() > 9 else own * 1.5,
    ],
)
def test_a_loss_of_the_model_itself_is_followed(loss):
    model, _, loader = private(model=Scored(4, CLASSES))
    x, _ = next(iter(loader))
    with pytest.raises(prudent.ArgumentError, match=r"reduction='none'|after backward"):
        loss(*model(x)).backward()


def test_what_a_batch_before_has_left_in_a_tensor_is_followed():
    centre = torch.zeros(CLASSES)

    def centred(o, y):
        centre.mul_(0.9).add_(o.detach().mean(0), alpha=0.1)
        return functional.cross_entropy(o - centre, y)

    with pytest.raises(prudent.ArgumentError, match="reduction='none'"):
        run(centred)


def test_another_wiring_of_the_same_functions_is_judged_again():
    turns = iter((0, 1, 1, 1))

    def loss(o, y):
        losses = losses_of(o, y)
        mean, own = losses.detach().mean(), losses.detach()
        one, other = (mean, own) if next(turns) == 0 else (own, mean)
        return ((one * 0 + other) * losses).mean()

    with pytest.raises(prudent.ArgumentError, match="reduction='none'"):
        run(loss)


SUMS = {
    "argument": lambda o, y: functional.cross_entropy(o, y, reduction="sum"),
    "module": lambda o, y: nn.CrossEntropyLoss(reduction="sum")(o, y),
    "by hand": lambda o, y: functional.cross_entropy(o, y, reduction="none").sum(),
    "divided by a public number": lambda o, y: (
        functional.cross_entropy(o, y, reduction="none").sum() / 30
    ),
    "a mean times the rows": lambda o, y: functional.cross_entropy(o, y) * len(o),
    "of rows": lambda o, y: sum(
        functional.cross_entropy(one[None], label[None]) for one, label in zip(o, y, strict=True)
    ),
}
MEANS = {
    "argument": functional.cross_entropy,
    "by hand": lambda o, y: functional.cross_entropy(o, y, reduction="none").mean(),
    "by length": lambda o, y: functional.cross_entropy(o, y, reduction="sum") / len(o),
    "by an inverse": lambda o, y: (
        functional.cross_entropy(o, y, reduction="sum") * (1 / max(1, len(o)))
    ),
    "by a tensor": lambda o, y: (
        functional.cross_entropy(o, y, reduction="sum") / torch.tensor(len(o))
    ),
    "by shape": lambda o, y: functional.cross_entropy(o, y, reduction="sum") / y.shape[0],
    "by numel": lambda o, y: ((o - 1) ** 2).sum() / o.numel(),
    "squares": lambda o, y: functional.mse_loss(o[:, 0], y.float()),
    "probabilities": lambda o, y: functional.binary_cross_entropy(
        torch.sigmoid(o[:, 0]), (y > 0).float()
    ),
    "weights of records": lambda o, y: (
        WEIGHTS[y] * functional.cross_entropy(o, y, reduction="none")
    ).mean(),
    "scaled, as for half precision": lambda o, y: 1024.0 * functional.cross_entropy(o, y),
    "of a slice": lambda o, y: functional.cross_entropy(o[:, :2], y.clamp_max(1)),
    "with dropout": lambda o, y: functional.cross_entropy(functional.dropout(o), y),
    "smooth": lambda o, y: functional.cross_entropy(o, y, label_smoothing=0.1),
    "of two terms": lambda o, y: functional.cross_entropy(o, y) + 0.1 * o.square().mean(),
    "gathered": lambda o, y: -o.log_softmax(1).gather(1, y[:, None]).mean(),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_under_the_default_is_refused_with_the_line_to_change(name):
    if name != "of rows":  # what cannot be run with fewer records is not judged
        with pytest.raises(prudent.ArgumentError, match=r"loss_reduction='sum'"):
            run(SUMS[name])
    assert run(SUMS[name], "sum") > 0


@pytest.mark.parametrize("records", [1, 2, 3, 7, 8, 20])
@pytest.mark.parametrize("name", MEANS)
def test_no_mean_is_taken_for_something_else(name, records):
    outputs = as_outputs(torch.randn(records, CLASSES, requires_grad=True))
    batch = traced_batch(torch.arange(records) % CLASSES)
    assert reduction_of(Replay(node_of(MEANS[name](outputs, batch)))) in ("mean", None)


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_a_mean_however_it_is_written(name):
    assert run(MEANS[name]) > 0


@pytest.mark.unhurried
@pytest.mark.parametrize(("losses", "reduction"), [(SUMS, "sum"), (MEANS, "mean")])
def test_what_is_read_to_be_shown_changes_nothing(losses, reduction):
    """Every loss, with its constants, also if values are read before backward."""

    def reading(loss, o, y):
        value = loss(o, y)
        shown(o, y, value)
        return value

    for loss in losses.values():
        assert run(functools.partial(reading, loss), reduction) > 0


def test_a_number_of_rows_is_noticed_whichever_tensor_of_the_batch_it_is_read_from():
    model, _, loader = private()
    x, y = next(iter(loader))
    with pytest.raises(prudent.ArgumentError, match=r"loss_reduction='sum'"):
        (functional.cross_entropy(model(x * 2), y) * x.shape[0]).backward()


def test_a_public_number_is_not_taken_for_that_of_rows_by_chance():
    """A factor of 16 in a batch of 16 might be their number, but not once it was there before."""
    judged = {}
    for records in (11, 16):
        batch = traced_batch([torch.randn(records, CLASSES), torch.arange(records) % CLASSES])
        made = torch.randn(records, CLASSES, requires_grad=True)
        outputs = as_outputs(made, None, batch_of(batch))
        assert len(batch[0]) == records
        loss = functional.cross_entropy(outputs, batch[1]) * 16.0
        check_loss(node_of(loss), "mean", judged)
    with pytest.raises(prudent.ArgumentError, match="loss_reduction"):
        check_loss(node_of(loss), "mean", {})


@pytest.mark.parametrize("name", ["argument", "by hand", "by length"])
def test_a_mean_that_is_declared_a_sum_is_refused(name):
    with pytest.raises(prudent.ArgumentError, match=r"loss_reduction='mean'"):
        run(MEANS[name], "sum")


INPUTS = {
    "mixup": lambda x: 0.7 * x + 0.3 * permuted(x),
    "centred": lambda x: x - x.mean(0),
    "scaled by the batch": lambda x: x / x.std(),
    "rolled": lambda x: 0.5 * (x + x.roll(1, 0)),
    "in place": lambda x: x.clone().sub_(x.mean(0)),
    "written": lambda x: _written(x),
    "written to a part": lambda x: _rows_written(x),
}


def _rows_written(x):
    x[:, 0].mul_(x[:, 1].max())
    return x


def _written(x):
    y = x.clone()
    y[1:] = x[:-1]
    return y


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_mix_records_are_refused(name):
    with pytest.raises(prudent.ArgumentError, match="each row comes from one record"):
        run(functional.cross_entropy, inputs=INPUTS[name])


ALONE = {
    "scaled": lambda x: (x - 0.1307) / 0.3081,
    "normalised": lambda x: functional.normalize(x, dim=1),
    "centred alone": lambda x: x - x.mean(1, keepdim=True),
    "noisy": lambda x: x + 0.1 * torch.randn_like(x),
    "flipped": lambda x: x.flip(1).to("cpu", non_blocking=True).float(),
    "by numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "in place": lambda x: _in_place(x),
    "masked": lambda x: x * torch.rand(len(x), 1).gt(0.5),
}


def _in_place(x):
    x[:, 0] *= 2
    x[:, 1].mul_(0.5)
    x[:, 2:] += torch.randn(len(x), 2)
    return x.sub_(0.1)


@pytest.mark.parametrize("name", ALONE)
def test_inputs_that_are_changed_one_by_one_are_not(name):
    assert run(functional.cross_entropy, inputs=ALONE[name]) > 0


def test_a_loop_is_judged_by_its_code_and_not_by_its_records():
    """Labels without the heavy class, or the same records, do not hide what a loss may do."""
    same = torch.zeros(RECORDS, dtype=torch.int64)
    with pytest.raises(prudent.ArgumentError, match=r"reduction='none' and then \.mean"):
        run(weighted, targets=same)


def test_what_is_shown_of_a_loss_is_an_ordinary_tensor():
    model, optimizer, loader = private()
    shown = []
    for x, y in loader:
        assert isinstance(x, Traced)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        shown.append(loss.detach())
        assert isinstance(loss.item(), float)
        assert f"{loss:.1f}"
        assert reduction_of(Replay(node_of(loss))) == "mean"
    assert all(type(each) is torch.Tensor for each in shown)


def loop(**options):
    torch.manual_seed(0)
    model = nn.Linear(4, CLASSES)
    data = TensorDataset(torch.randn(RECORDS, 4), torch.arange(RECORDS) % CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return prudent.make_private(model, optimizer, DataLoader(data, batch_size=32), **options)


def test_the_noise_may_be_given_instead_of_a_plan():
    _, optimizer, loader = loop(noise_multiplier=1.3, epochs=2, clip=0.5)
    assert optimizer.plan.aggregation == prudent.Sum(clip=0.5, noise_multiplier=1.3)
    assert optimizer.plan.steps == 2 * len(loader) == 4
    whole = prudent.Plan(
        sampling_rate=0.5, steps=4, aggregation=prudent.Sum(clip=0.5, noise_multiplier=1.3)
    )
    assert optimizer.plan.epsilon(1e-5) == whole.epsilon(1e-5)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"noise_multiplier": 1.0}, "epochs"),
        ({"noise_multiplier": 1.0, "epochs": 1, "epsilon": 3.0}, "epsilon"),
        ({"noise_multiplier": -1.0, "epochs": 1}, "noise_multiplier"),
        (
            {
                "noise_multiplier": 1.0,
                "epochs": 1,
                "aggregation": prudent.Sum(clip=1.0, noise_multiplier=1.0),
            },
            "aggregation",
        ),
    ],
)
def test_a_noise_that_contradicts_is_refused(options, name):
    with pytest.raises(prudent.ArgumentError) as refused:
        loop(**options)
    assert refused.value.argument == name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 1e9, "delta": 1e-5}, "protects nobody"),
        ({"epsilon": 3.0, "delta": 0.1}, "not below 1/64"),
    ],
)
def test_promises_that_promise_nothing_are_warned_of(options, said):
    with pytest.warns(RuntimeWarning, match=said):
        loop(epochs=1, **options)


def test_fit_and_plans_of_ones_own_warn_as_well():
    plan = prudent.Plan(
        sampling_rate=0.5, steps=2, aggregation=prudent.Sum(clip=1.0, noise_multiplier=1.0)
    )
    with pytest.warns(RuntimeWarning, match="protects nobody"):
        plan.calibrate(epsilon=1e9, delta=1e-5)
    data = torch.randn(8, 4), torch.arange(8) % CLASSES
    with pytest.warns(RuntimeWarning, match="not below 1/8"):
        prudent.fit(
            plan, nn.Linear(4, CLASSES), nn.CrossEntropyLoss(reduction="none"), data, delta=0.125
        )


def test_clipping_in_the_loop_is_named():
    model, optimizer, loader = loop(noise_multiplier=1.0, epochs=2)
    batches = iter(loader)
    x, y = next(batches)
    functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before the first step there are none
    optimizer.step()
    x, y = next(batches)
    functional.cross_entropy(model(x), y).backward()  # without zero_grad
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(ValueError, match=r"clip_grad_norm_.*zero_grad"):
        optimizer.step()
