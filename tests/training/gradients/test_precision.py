"""The model computes in bfloat16; what bounds a sensitivity does not.

What each record adds to the released sum is measured, in double precision, against the clip.
"""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from prudent.training.aggregation import clip_weights
from prudent.training.gradients import BookKeeping, Formed, Materialised
from prudent.training.gradients.factors import contributions, products
from prudent.training.gradients.factors.contributions import Dense, Outer, TableRows, as_it_is
from prudent.training.gradients.factors.norms import squared_norms
from tests.training.gradients.oracle import cross_entropy
from tests.training.gradients.test_large_models import MODELS, batch, set_checkpointed
from tests.training.gradients.toys import Decoder, sequence_loss
from tests.training.memory import peak_bytes


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(11)


def flat(total: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in total.values()]).double()


def wide() -> nn.Module:
    """Layers whose factors are kept, whose gradients are formed, and of one position."""
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, 2, 1),
        nn.GroupNorm(4, 48),
        nn.ReLU(),
        nn.Conv2d(48, 40, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40, 64),
        nn.Tanh(),
        nn.Linear(64, 5),
    )


@pytest.mark.parametrize("name", [*MODELS, "wide"])
def test_no_record_adds_more_than_the_clip(engine, name):
    model = wide() if name == "wide" else MODELS[name]()
    loss, inputs, targets = batch(model)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    made = engine(model, loss, autocast=torch.bfloat16)
    norms = made(model, inputs, targets).norms
    assert norms.dtype == torch.float32
    clip = float(norms.min()) / 2
    weights, _ = clip_weights(norms, torch.ones(4, dtype=torch.bool), clip)
    parts = []
    for record in range(4):
        alone = torch.zeros(4)
        alone[record] = weights[record]
        total = made(model, inputs, targets).weighted_sum(alone)
        assert all(value.dtype == torch.float64 for value in total.values())
        parts.append(flat(total))
    for part in parts:
        assert (1 - 1e-5) * clip < part.norm() < (1 + 1e-5) * clip
    # The sum of all is in double precision, never in half of it.
    together = flat(made(model, inputs, targets).weighted_sum(weights))
    exact = torch.stack(parts).sum(0)
    assert (together - exact).norm() < 1e-6 * torch.stack(parts).norm()


def test_the_model_computes_in_half_precision(engine):
    """The numbers differ from those of single precision as bfloat16 does, so it is really used."""
    model = wide()
    loss, inputs, targets = batch(model)
    half = engine(model, loss, autocast=torch.bfloat16)(model, inputs.float(), targets).norms
    full = engine(model, loss)(model, inputs.float(), targets).norms
    assert 1e-4 < ((half - full) / full).abs().max() < 0.05


def test_a_rounded_sum_would_be_noticed(monkeypatch):
    """The check above fails for products summed in half precision."""
    product = contributions._finite_product
    monkeypatch.setattr(
        contributions,
        "_finite_product",
        lambda left, right: product(left.bfloat16(), right.bfloat16()),
    )
    with pytest.raises(AssertionError):
        test_no_record_adds_more_than_the_clip(BookKeeping, "wide")


def test_checkpoints_keep_the_precision():
    model = Decoder()
    loss, inputs, targets = batch(model)
    found = []
    for on in (False, True):
        set_checkpointed(model, on)
        gradients = BookKeeping(model, loss, autocast=torch.bfloat16)(model, inputs, targets)
        found.append((gradients.norms, flat(gradients.weighted_sum(torch.ones(4)))))
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-6, atol=1e-6)


def test_second_run_has_the_precision_of_the_first():
    """Even if the caller's autocast is over by then."""
    model = wide()
    loss, inputs, targets = batch(model)
    made = BookKeeping(model, loss, recompute=True)
    with torch.autocast("cpu", torch.bfloat16):
        gradients = made(model, inputs.float(), targets)
    total = gradients.weighted_sum(torch.eye(4)[1])
    torch.testing.assert_close(flat(total).norm().float(), gradients.norms[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("make", [BookKeeping, Materialised])
def test_autocast_around_the_sum_rounds_nothing(make):
    model = wide()
    loss, inputs, targets = batch(model)
    made = make(model, loss)
    expected = flat(made(model, inputs.float(), targets).weighted_sum(torch.ones(4)))
    gradients = made(model, inputs.float(), targets)
    with torch.autocast("cpu", torch.bfloat16):
        total = flat(gradients.weighted_sum(torch.ones(4)))
    torch.testing.assert_close(total, expected)


def test_products_of_a_device_with_short_factors(monkeypatch):
    """What a GPU does: exact products of bfloat16 factors, and double precision without kernels."""
    seen = []

    def summed(left, right):
        seen.append(left.dtype)
        assert left.dtype == right.dtype == torch.bfloat16
        return left.float() @ right.float()

    rows, columns = torch.randn(2, 5, 7, 6).bfloat16(), torch.randn(2, 5, 7, 9).bfloat16()
    weights = torch.rand(5)
    factors = Outer(rows, columns, as_it_is)
    norms, total = squared_norms([factors]), factors.weighted_sum(weights)
    monkeypatch.setattr(
        contributions, "multiplies_short", lambda factor: factor.dtype == torch.bfloat16
    )
    monkeypatch.setattr(products, "multiplies_short", contributions.multiplies_short)
    monkeypatch.setattr(products, "summed_in_single", summed)
    torch.testing.assert_close(squared_norms([factors]), norms, rtol=1e-3, atol=0)
    assert (squared_norms([factors]) > norms).all()  # the allowance for runs in single precision
    exact = torch.einsum("grti,r,grtj->gij", rows.double(), weights.double(), columns.double())
    for found in (total, factors.weighted_sum(weights)):
        assert (found - exact).norm() < 1e-14 * exact.norm()
    assert len(seen) == 4


def test_large_sums_are_added_in_pieces(monkeypatch):
    rows, columns = torch.randn(1, 10, 3, 4).double(), torch.randn(1, 10, 3, 5).double()
    weights = torch.rand(10)
    factors = Outer(rows, columns, as_it_is)
    whole = factors.weighted_sum(weights)
    monkeypatch.setitem(contributions._CONVERTED, "cpu", 3 * 5 * 4)
    torch.testing.assert_close(factors.weighted_sum(weights), whole)


def test_factors_are_kept_as_short_as_they_are():
    model = Decoder(32, 3, 20, 48)
    inputs = torch.randint(0, 20, (8, 48))

    def held(autocast: torch.dtype | None) -> int:
        engine = BookKeeping(model, sequence_loss, autocast=autocast)
        return peak_bytes(lambda: engine(model, inputs, inputs.roll(-1, 1)))

    assert held(torch.bfloat16) < 0.85 * held(None)


def test_losses_of_half_precision(engine):
    model = wide()
    _, inputs, targets = batch(model)
    gradients = engine(model, cross_entropy, autocast=torch.bfloat16)(
        model, inputs.float(), targets
    )
    assert gradients.losses.shape == (4,)


def linear_with_opposite_positions() -> Outer:
    """Long rows and columns of either sign, whose products nearly cancel."""
    signs = torch.tensor([1.0, -1.0]).repeat(8)[:, None]
    rows = 1e4 * signs * torch.randn(1, 6, 1, 300)
    return Outer(
        rows, torch.randn(1, 6, 1, 300) + 1e-4 * torch.randn(1, 6, 16, 300), lambda m: m.squeeze(-3)
    )


def rows_of_opposite_signs() -> TableRows:
    values = 1e4 * torch.randn(6, 1, 300)
    values = torch.cat([values, torch.randn(6, 1, 300) - values], 1)
    return TableRows(torch.full((6, 2), 3), values, 5)


def opposite_uses() -> list[contributions.Contribution]:
    values = 1e4 * torch.randn(6, 300, 20)
    return [Dense(values), Dense(0.1 * torch.randn(6, 300, 20) - values)]


@pytest.mark.parametrize(
    "uses",
    [
        lambda: [linear_with_opposite_positions()],
        lambda: [rows_of_opposite_signs()],
        opposite_uses,
        lambda: [linear_with_opposite_positions(), Dense(torch.zeros(6, 300, 300))],
    ],
)
def test_a_record_whose_gradient_cancels_adds_no_more_than_the_clip(uses):
    """Of long products that cancel rounding leaves anything, zero as well: never less than true."""
    found = uses()
    norms = squared_norms(found).clamp_min(0).sqrt()
    for record in range(6):
        weights = torch.zeros(6)
        weights[record] = clip_weights(norms, torch.ones(6, dtype=torch.bool), 1.0)[0][record]
        total = sum(use.weighted_sum(weights).double() for use in found)
        assert total.norm() <= 1 + 1e-5


@pytest.mark.parametrize("positions", [40, 100, 1000])
@pytest.mark.parametrize("share", [2.5, 3.0, 4.0])
@pytest.mark.parametrize("uses", [1, 2])
def test_sums_that_overflow_hide_no_gradient(positions, share, uses):
    """A part of the inner products may be −∞ where all of them have a finite sum."""
    columns = torch.full((1, 1, positions, 1), -1.8e19 * share / (positions - 1))
    columns[:, :, 0] = 1.8e19
    found = [Outer(torch.ones(1, 1, positions, 1), columns, as_it_is) for _ in range(uses)]
    norms = squared_norms(found).sqrt()
    weights, _ = clip_weights(norms, torch.tensor([True]), 1.0)
    total = sum(use.weighted_sum(weights) for use in found)
    assert total.norm() <= 1 + 1e-5


@pytest.mark.parametrize("tiny", [1e-23, 2.5e-23, 1e-22, 1e-21])
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_factor_whose_squares_vanish_hides_no_gradient(tiny, positions, uses, swapped):
    """Inputs near 1e-23 have squares of zero; an error of 1e18 makes a gradient of them."""
    clip, size = 1e-3, 40_000
    columns = torch.full((1, 2, positions, size), tiny)
    rows = torch.full((1, 2, positions, 3), 1e18)
    factors = (columns, rows) if swapped else (rows, columns)
    found = [Outer(*factors, lambda m: m.squeeze(-3)) for _ in range(uses)]
    norms = squared_norms(found).sqrt()
    weights, _ = clip_weights(norms, torch.tensor([True, False]), clip)
    total = sum(use.weighted_sum(weights).double() for use in found)
    assert total.norm() <= clip * (1 + 1e-5)


def test_where_nothing_cancels_little_is_added():
    rows, columns = torch.randn(1, 5, 20, 400), torch.randn(1, 5, 20, 400)
    factors = Outer(rows, columns, lambda m: m.squeeze(-3))
    exact = factors.per_example().double().square().sum((1, 2)).sqrt()
    assert (squared_norms([factors]).sqrt() < 1.001 * exact).all()


PLACES = products._PLACES
NEWER = pytest.mark.skipif(not PLACES, reason="this torch has one setting for all products")


@pytest.mark.parametrize(
    "allow",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        pytest.param(
            lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), marks=NEWER
        ),
    ],
    ids=["everywhere", "on the device"],
)
def test_what_layers_may_cut_norms_and_sums_do_not(allow, monkeypatch):
    """A user who allows TF32 to the layers has not allowed it to what bounds a sensitivity."""
    seen = []
    multiply = Tensor.__matmul__

    def watched(left, right):
        seen.append({place.fp32_precision for place in PLACES} or {everywhere_now()})
        return multiply(left, right)

    everywhere_now = torch.get_float32_matmul_precision
    before = [place.fp32_precision for place in PLACES]
    everywhere = torch.get_float32_matmul_precision()
    allow()
    try:
        allowed = [place.fp32_precision for place in PLACES[:1]]
        factors = Outer(torch.randn(1, 5, 7, 6), torch.randn(1, 5, 7, 9), as_it_is)
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "__matmul__", watched)
            squared_norms([factors])
            factors.weighted_sum(torch.ones(5))
            Dense(torch.randn(5, 6)).weighted_sum(torch.ones(5))
        assert [place.fp32_precision for place in PLACES[:1]] == allowed
        assert set(allowed) <= {"tf32"}
    finally:
        torch.set_float32_matmul_precision(everywhere)
        for place, precision in zip(PLACES, before, strict=True):
            place.fp32_precision = precision
    assert torch.get_float32_matmul_precision() == everywhere
    assert len(seen) == 4
    assert all(precisions <= {"ieee", "none", "highest"} for precisions in seen)


@pytest.mark.parametrize("value", [0.1, 0.3333, None], ids=["equal", "equal too", "random"])
def test_norms_of_millions_of_numbers(value):
    """Squares added up one after another in single precision lose a hundredth of such a norm."""
    gradients = torch.randn(1, 10_000_001) if value is None else torch.full((1, 10_000_001), value)
    exact = gradients.double().square().sum().sqrt()
    formed = Formed({"weight": gradients}, torch.zeros(1)).norms[0]
    for norm in (formed, squared_norms([Dense(gradients)])[0].sqrt()):
        assert abs(norm / exact - 1) < 2e-5


ALLOWED = """
pass
torch.set_float32_matmul_precision('high')
torch.set_float32_matmul_precision('medium')
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cuda.matmul.fp32_precision = 'tf32'
torch.backends.fp32_precision = 'tf32'
"""

SETTINGS = f"""
import os, torch
exec(open({products.__file__!r}).read())

def settings():
    try:
        one = torch.get_float32_matmul_precision()
    except RuntimeError:
        one = None
    places = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    return one, [place.fp32_precision not in ("ieee", "none") for place in places]

def check(allow):
    exec(allow)
    before = settings(), precisions()
    with whole_products():
        assert settings()[1] == [False, False]
        with short_products():
            assert settings()[1] == [True, False]
        assert settings()[1] == [False, False]
    assert (settings(), precisions()) == before
    with short_products():
        assert settings()[1][0]
    assert (settings(), precisions()) == before

for allow in {ALLOWED.split(chr(10))[1:-1]!r}:
    child = os.fork()
    if child == 0:
        check(allow)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, allow
"""


@NEWER
@pytest.mark.thorough
def test_settings_of_products_are_put_back():
    """Each in a process of its own: what one interface set, another cannot always undo."""
    subprocess.run([sys.executable, "-c", SETTINGS], check=True)
