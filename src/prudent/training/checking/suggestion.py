"""Choosing clip, proposal, trim and test from the gradients of public records."""

import math
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from prudent import _validate
from prudent.accounting.events import GaussianTest
from prudent.records.containers import declared_form, tensors_of
from prudent.records.reader import Collate
from prudent.training.aggregation import AdaptiveTrim, ProposeTestRelease
from prudent.training.gradients.engine import Loss
from prudent.training.parallel import Processes
from prudent.training.run.execution import Execution
from prudent.training.run.reading import RunRecords

_STEP = 0.02


def gradient_norms(
    model: nn.Module,
    loss: Loss,
    public_set: Any,
    *,
    collate_fn: Collate | None = None,
    example: Any = None,
    execution: Execution | None = None,
    rows: int = 64,
) -> Tensor:
    """The gradient norm of every public record, at the present parameters of a model.

    The norms are as secret as the records: nothing is charged, and no noise is added. Measure them
    on public records that resemble the private ones, with the model that is to be trained. Norms
    change while a model learns, so measure an untrained model and, if public records allow, one
    that was trained on them.

    Args:
        model: The model, on the device of `execution`; it is not changed.
        loss: As for `fit`.
        public_set: Public or made-up records, in any form that `fit` takes.
        collate_fn: As for `fit`.
        example: As for `fit`.
        execution: As for `fit`.
        rows: Records per pass.

    Returns:
        The norms on the host, without those that are not finite.
    """
    execution = Execution() if execution is None else execution
    _validate.instance(Execution, "an Execution", execution=execution)
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.function(loss=loss)
    rows = _validate.count(1, rows=rows)
    if example is None and tensors_of(public_set) is None and declared_form(public_set) is None:
        example = public_set[0]  # public, as all of them are
    records = RunRecords.of(public_set, execution, Processes(), collate_fn, example)
    engine = execution.engine_of(model, loss)
    values = dict((*model.named_parameters(), *model.named_buffers()))
    device = execution.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        batches = map(records.read, torch.split(torch.arange(records.count), rows))
        norms = torch.cat([engine(values, *batch).norms.detach().cpu() for batch in batches])
    return norms[norms.isfinite()]


def suggest_aggregation(
    norms: Tensor,
    *,
    expected_batch: float,
    trim: float = 0.25,
    above: float | None = None,
    propose: float = 0.5,
    failure: float = 1e-8,
    pass_probability: float = 0.9,
) -> ProposeTestRelease:
    """A `ProposeTestRelease` whose test passes on batches with such gradient norms.

    τ is the norm that a fraction `above` of the records exceeds, and R = τ/`propose`. The test is
    Gaussian, with the largest scale, hence at the lowest price, at which a batch passes with
    `pass_probability`. The noise multiplier is 1: calibrate the plan.

    Args:
        norms: Gradient norms of public records (`gradient_norms`), or whatever else is public or
            was released and charged. Norms of private records must not be used: clip, proposal and
            test are shown, so they would be an uncharged release.
        expected_batch: The public batch size.
        trim: Fraction of the batch that is trimmed at the start.
        above: Fraction of the records with a norm above τ; below `trim`. Smaller values leave a
            larger margin, hence a cheaper test, but a larger τ, hence more noise. None: half of
            `trim`.
        propose: τ/R. R is the clip of steps whose test fails.
        failure: δ₀, the largest probability with which a margin of 0 passes.
        pass_probability: Probability with which a Poisson batch of records with these norms passes
            while `trim` is as at the start. Later the trim adapts, so that about this fraction of
            the steps pass.

    Raises:
        ArgumentError: If the batch is so small that only a test of scale below 1 would pass, which
            costs more than the sum itself.
    """
    try:
        values = torch.as_tensor(norms, dtype=torch.float64, device="cpu").flatten()
    except Exception:  # whatever an object raises that is no tensor
        raise _validate.ArgumentError(
            "norms", "a tensor of numbers", shown=type(norms).__name__
        ) from None
    values = values[values.isfinite()]
    _validate.positive(expected_batch=expected_batch)
    _validate.between(0, 1, ends="()", trim=trim)
    above = _validate.between(0, trim, ends="()", above=trim / 2 if above is None else above)
    _validate.between(0, 1, ends="()", propose=propose)
    _validate.between(0, 0.5, ends="()", failure=failure)
    chance = math.sqrt(_validate.between(0, 1, ends="()", pass_probability=pass_probability))
    longest = float(torch.quantile(values, 1 - above)) if len(values) else 0.0
    if not longest > 0:
        raise _validate.ArgumentError(
            "norms", "with enough norms above 0", shown=f"{len(values)} that are finite"
        )
    # The number of norms above τ in a batch is at most `many`, and a margin of trimmed − many
    # passes, each with probability `chance`; so both happen with `pass_probability`.
    many = float(stats.poisson.ppf(chance, above * expected_batch))
    margin = math.floor(trim * expected_batch) - many
    scale = margin / (GaussianTest(1.0).threshold(failure) + float(stats.norm.ppf(chance)))
    if scale < 1:
        raise _validate.ArgumentError(
            "expected_batch",
            "large enough for a test of scale 1 or more",
            got=expected_batch,
            why=f"a batch would leave a margin of {max(0.0, margin):g} records, which passes only "
            f"a test of scale {max(0.0, scale):.2g}",
            hint="Use larger batches, a larger trim or failure, or prudent.Sum, which has no test.",
        )
    return ProposeTestRelease(
        clip=longest / propose,
        propose=propose,
        noise_multiplier=1.0,
        test=GaussianTest(scale),
        failure=failure,
        trim=AdaptiveTrim(
            first=trim,
            up=_STEP,
            down=_STEP * (1 - pass_probability) / pass_probability,
            most=max(0.5, trim),
        ),
    )
