"""`prudent.check`: each problem is found, named and given a fix; sound models pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import prudent
from prudent import ArgumentError
from prudent.training.checking import LossKind, Severity, check

RECORDS = 6


def inputs() -> Tensor:
    return torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(0))


def targets() -> Tensor:
    return torch.tensor([0, 1, 2, 0, 1, 2])


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), *more, nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3))


def report(model: nn.Module, loss: Any = functional.cross_entropy, **options: Any) -> Any:
    return check(model, loss, (inputs(), targets()), **options)


class Calls(nn.Module):
    """A linear layer, and a function of the module and the inputs around it."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(5, 3)
        self.other = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(3))
        self._calls = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._calls(self, x)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 3.0]))


def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, ignore_index=2)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs @ outputs.T).log_softmax(1).diagonal().mean()


@pytest.mark.parametrize(
    ("reduction", "kind"),
    [("mean", LossKind.MEAN), ("sum", LossKind.SUM), ("none", LossKind.PER_RECORD)],
    ids=["mean", "sum", "none"],
)
@pytest.mark.parametrize("made_up", [False, True])
def test_a_sound_model_passes(reduction: str, kind: LossKind, made_up: bool) -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found = report(model, nn.CrossEntropyLoss(reduction=reduction), made_up=made_up)
    assert found.ok
    assert found.findings == ()
    assert found.loss is kind
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert str(found).startswith("Ready for private training.")


@pytest.mark.parametrize("loss", [weighted, contrastive])
def test_losses_whose_terms_depend_on_several_records(loss: Any) -> None:
    found = report(network(), loss)
    assert not found.ok
    assert found.loss is None
    assert [finding.where for finding in found.findings] == ["loss"]
    assert "reduction='none'" in found.findings[0].fix


def test_a_mean_with_ignored_labels_is_divided_by_a_public_number() -> None:
    found = report(network(), ignoring)
    assert found.ok
    assert found.loss is LossKind.MEAN


PROBLEMS: dict[str, tuple[nn.Module, str, str]] = {
    "batch normalisation": (network(nn.BatchNorm1d(4)), "1", "GroupNorm"),
    "mean over records": (Calls(lambda m, x: m.linear(x - x.mean(0))), "model", "first axis"),
    "buffer": (
        Calls(lambda m, x: m.linear(x) * m.other + 0 * m.seen.add_(1)),
        "seen",
        "between steps",
    ),
    "kept record": (
        Calls(lambda m, x: setattr(m, "last", m.linear(x)) or m.last * m.other),
        "model",
        "set it back to None",
    ),
    "parameter in place": (
        Calls(lambda m, x: m.linear(x) * m.other + 0 * m.other.data.mul_(0.9)),
        "other",
        "without writing",
    ),
    "branch on a record": (
        Calls(lambda m, x: m.linear(x) * m.other * (2.0 if float(x.sum()) > 1 else 1.0)),
        "model",
        "torch.where",
    ),
    "half precision": (network().bfloat16(), "model", "float()"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_a_model(name: str) -> None:
    model, where, fix = PROBLEMS[name]
    found = report(model)
    assert not found.ok
    errors = [finding for finding in found.findings if finding.severity is Severity.ERROR]
    assert where in [finding.where for finding in errors], str(found)
    assert any(fix in finding.fix for finding in errors), str(found)
    assert str(found).startswith("Not ready for private training.")


def test_a_model_that_has_kept_a_tensor_cannot_be_copied() -> None:
    model, where, _ = copy.deepcopy(PROBLEMS["kept record"])
    model(inputs())
    (finding,) = report(model).findings
    assert finding.where == where
    assert "cannot be copied" in finding.problem


def test_penalty_in_the_loss() -> None:
    model = network()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets) + model[0].weight.square().sum()

    (finding,) = report(model, loss).findings
    assert finding.where == "0.weight"
    assert "weight_decay" in finding.fix


def test_parameters_of_the_loss() -> None:
    scale = nn.Parameter(torch.tensor(2.0))
    (finding,) = report(network(), lambda o, t: functional.cross_entropy(o * scale, t)).findings
    assert finding.where == "loss"
    assert "Move it into the model" in finding.fix


def test_parameters_that_never_move() -> None:
    found = report(Calls(lambda m, x: m.linear(x)))
    assert found.ok
    (finding,) = found.findings
    assert finding.severity is Severity.WARNING
    assert finding.where == "other"
    assert "requires_grad_(False)" in finding.fix


def test_adapters_that_begin_at_zero_are_no_finding() -> None:
    model = nn.Sequential(nn.Linear(5, 2, bias=False), nn.Linear(2, 3, bias=False))
    nn.init.zeros_(model[1].weight)
    assert report(model).findings == ()


def test_frozen_parameters_are_noted() -> None:
    model = network()
    model[0].requires_grad_(False)
    (finding,) = report(model).findings
    assert finding.severity is Severity.NOTE
    assert "0.weight, 0.bias" in finding.problem
    model.requires_grad_(False)
    assert not report(model).ok


def test_evaluation_mode_is_mentioned() -> None:
    found = report(network().eval())
    assert found.ok
    assert [finding.severity for finding in found.findings] == [Severity.WARNING]


def test_a_changed_input_is_mentioned() -> None:
    found = report(Calls(lambda m, x: m.linear(x.mul_(0.5)) * m.other))
    assert found.ok
    assert "in place" in found.findings[0].problem


def test_a_model_that_computes_its_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.head = nn.Linear(4, 9)

        def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.head(self.table(tokens))
            return {
                "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
                "logits": logits,
            }

    tokens = torch.randint(0, 9, (RECORDS, 5), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "labels": tokens}, tokens
    found = prudent.check(Own(), lambda outputs, _: outputs["loss"], batch)
    assert found.ok, str(found)
    assert found.loss is LossKind.MEAN


def test_a_model_that_rejects_made_up_records_is_found() -> None:
    """As before a run: one record that it rejects would end it."""

    def factored(module: Any, x: Tensor) -> Tensor:
        root: Tensor = torch.linalg.cholesky(x[:, :4].reshape(-1, 2, 2))
        return root.flatten(1)[:, :3] @ module.linear.weight[:, :3]

    fine = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]).expand(RECORDS, 5)
    found = check(Calls(factored), functional.cross_entropy, (fine, targets()))
    assert not found.ok
    assert "made-up records that replace" in str(found)


def test_only_shapes_are_used_of_a_batch_to_be_made_up() -> None:
    odd = torch.full((RECORDS, 5), torch.nan), torch.full((RECORDS,), -7)
    assert check(network(), functional.cross_entropy, odd, made_up=True).ok
    found = check(network(), functional.cross_entropy, (odd[0], targets()))
    assert any("not finite" in finding.problem for finding in found.findings) or not found.ok


@pytest.mark.parametrize(
    "batch", [inputs(), (inputs(),), (inputs()[:1], targets()[:1])], ids=["bare", "one", "short"]
)
def test_batches_that_cannot_be_checked(batch: Any) -> None:
    with pytest.raises(ArgumentError, match="batch"):
        check(network(), functional.cross_entropy, batch)


def test_a_model_that_does_not_run() -> None:
    found = check(network(), functional.cross_entropy, (inputs()[:, :2], targets()))
    assert [finding.where for finding in found.findings] == ["model"]
    assert "does not run" in found.findings[0].problem
