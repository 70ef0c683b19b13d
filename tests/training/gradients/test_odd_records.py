"""A record that a kernel would refuse counts as zero, and no error tells of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from prudent.training.gradients import BookKeeping
from tests.training.gradients.oracle import cross_entropy, squares

SECRET = 918273


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


class Choosing(nn.Linear):
    def __init__(self, choose):
        super().__init__(4, 6)
        self.choose = choose

    def forward(self, x, which):
        return self.choose(super().forward(x), which)


class Factored(nn.Linear):
    """Fails for a record whose first number is not positive."""

    def forward(self, x):
        factor = torch.linalg.cholesky(x[:, :1, None] * torch.eye(2, dtype=x.dtype))
        return super().forward(x) * factor.sum((1, 2))[:, None]


def integers(records: int, end: int, odd: int) -> torch.Tensor:
    values = torch.arange(records) % end
    values[2] = odd
    return values


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()


def tokens(odd):
    inputs = torch.arange(18).view(6, 3) % 7
    inputs[2, 1] = odd
    return Tokens(), cross_entropy, inputs, torch.arange(6) % 3


def chosen(choose):
    def case(odd):
        return Choosing(choose), squares, (normal(6, 4), integers(6, 6, odd)), normal(6)

    return case


def probability(odd):
    def loss(outputs, targets):
        return functional.binary_cross_entropy(outputs.sigmoid(), targets, reduction="none").sum(1)

    inputs = normal(6, 4)
    inputs[2] = torch.nan if odd > 0 else torch.inf
    return nn.Linear(4, 3), loss, inputs, torch.ones(6, 3).double()


def factored(odd):
    inputs = normal(6, 4).abs()
    inputs[2, 0] = -abs(odd)
    return Factored(4, 3), cross_entropy, inputs, torch.arange(6) % 3


def several(odd):
    inputs = normal(6, 4)
    targets = (torch.arange(12).view(6, 2)) % 3
    targets[2, 1] = odd

    def loss(outputs, targets):
        each = functional.nll_loss(
            outputs.view(-1, 3, 2).log_softmax(1), targets, reduction="none", ignore_index=1
        )
        return each.sum(1)

    return nn.Linear(4, 6), loss, inputs, targets


CASES = {
    "label": lambda odd: (nn.Linear(4, 3), cross_entropy, normal(6, 4), integers(6, 3, odd)),
    "mean label": lambda odd: (
        nn.Linear(4, 3),
        lambda o, t: functional.cross_entropy(o, t)[None],
        normal(6, 4),
        integers(6, 3, odd),
    ),
    "labels of positions": several,
    "token": tokens,
    "gather": chosen(lambda y, i: y.gather(1, i[:, None])),
    "index_select": chosen(lambda y, i: y.index_select(1, i)),
    "item": chosen(lambda y, i: y[torch.arange(len(y)), i]),
    "item after dots": chosen(lambda y, i: y[..., None, i]),
    "scatter": chosen(lambda y, i: y.scatter(1, i[:, None], torch.ones(len(y), 1).double())),
    "in place": chosen(lambda y, i: (y * 1).scatter_(1, i[:, None], y[:, :1])),
    "added in place": chosen(lambda y, i: (y * 1).scatter_add_(1, i[:, None], y[:, :1])),
    "reduced": chosen(lambda y, i: y.scatter_reduce(1, i[:, None], y[:, :1], "sum")),
    "along": chosen(lambda y, i: torch.take_along_dim(y, i[:, None], 1)),
    "along all": chosen(lambda y, i: y.take_along_dim(i)),
    "flat": chosen(lambda y, i: y.take(i)),
    "added at": chosen(lambda y, i: y.index_add(1, i, y[:, :1])),
    "filled": chosen(lambda y, i: y.index_fill(1, i, 1.0)),
    "copied in place": chosen(lambda y, i: (y * 1).index_copy_(1, i, y[:, :1])),
    "probability": probability,
    "margin": lambda odd: (
        nn.Linear(4, 3),
        lambda o, t: functional.multi_margin_loss(o, t, reduction="none"),
        normal(6, 4),
        integers(6, 3, odd),
    ),
    "cholesky": factored,
}
OTHERS = torch.tensor([0, 1, 3, 4, 5])


def rows(tree, keep):
    return tuple(leaf[keep] for leaf in tree) if isinstance(tree, tuple) else tree[keep]


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("odd", [SECRET, -SECRET])
@pytest.mark.parametrize("case", CASES)
def test_an_odd_record_is_as_good_as_none(engine, case, odd):
    torch.manual_seed(0)
    model, loss, inputs, targets = CASES[case](odd)
    model.double()
    made = engine(model, loss)
    gradients = made(model, inputs, targets)
    assert gradients.norms.isfinite().tolist() == [True, True, False, True, True, True]
    without = made(model, rows(inputs, OTHERS), targets[OTHERS])
    torch.testing.assert_close(gradients.norms[OTHERS], without.norms)
    weights = torch.ones(6).double()
    weights[2] = 0
    total, expected = gradients.weighted_sum(weights), without.weighted_sum(weights[OTHERS])
    for name, value in expected.items():
        torch.testing.assert_close(total[name], value)
    formed = made.formed(model, inputs, targets)
    assert formed.corrupted(dict).norms.isfinite().tolist() == gradients.norms.isfinite().tolist()


# A GPU would stop the run at a number that a kernel does not allow, and cannot be asked again.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("case", sorted({*CASES} - {"margin", "cholesky"}))
def test_no_kernel_is_given_what_it_would_refuse(monkeypatch, engine, case):
    monkeypatch.setattr("prudent.training.gradients.engine.RejectedRecords", None)
    model, loss, inputs, targets = CASES[case](SECRET)
    norms = engine(model.double(), loss)(model, inputs, targets).norms
    assert norms.isfinite().tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize("case", ["label", "labels of positions", "token", "gather", "item"])
def test_what_is_allowed_is_left_as_it_is(engine, case):
    for allowed in (0, 1, 2):
        model, loss, inputs, targets = CASES[case](allowed)
        assert engine(model.double(), loss)(model, inputs, targets).norms.isfinite().all()


def test_numbers_from_the_end_are_items():
    model, loss, inputs, targets = CASES["item"](-6)
    assert BookKeeping(model.double(), loss)(model, inputs, targets).norms.isfinite().all()


def test_an_ignored_label_adds_nothing(engine):
    model, loss, inputs, targets = CASES["label"](-100)
    norms = engine(model.double(), loss)(model, inputs, targets).norms
    assert norms[2] < 1e-12
    assert norms[OTHERS].min() > 0


def test_every_record_may_be_odd(engine):
    model, loss, inputs, targets = CASES["cholesky"](1)
    norms = engine(model.double(), loss)(model, -inputs.abs(), targets).norms
    assert norms.isnan().all()


def test_norms_and_sum_have_the_same_dropout_after_a_search(engine):
    class Dropping(Factored):
        def forward(self, x):
            return functional.dropout(super().forward(x), 0.5)

    model = Dropping(4, 3).double()
    _, loss, inputs, targets = CASES["cholesky"](1)
    for place in OTHERS:
        gradients = engine(model, loss)(model, inputs, targets)
        total = gradients.weighted_sum(functional.one_hot(place, 6).double())
        norm = torch.stack([value.square().sum() for value in total.values()]).sum().sqrt()
        torch.testing.assert_close(norm, gradients.norms[place])


def test_an_error_of_the_code_is_raised_without_a_word_of_the_data(engine):
    model = nn.Linear(4, 3).double()

    def wrong(outputs, targets):
        if outputs.shape[1] == 3:
            raise KeyError(str(targets.shape))
        return outputs

    with pytest.raises(KeyError) as caught:
        engine(model, wrong)(model, normal(6, 4), torch.full((6,), SECRET))
    assert caught.value.__context__ is None


def test_an_error_that_quotes_records_is_not_passed_on(engine):
    model = nn.Linear(4, 3).double()

    def quoting(outputs, targets):
        raise ValueError(repr(targets))

    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is what is looked at
        engine(model, quoting)(model, normal(6, 4), torch.full((6,), SECRET))
    assert str(SECRET) not in str(caught.value)
    assert caught.value.__context__ is None
