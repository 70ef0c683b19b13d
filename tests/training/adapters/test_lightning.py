"""Lightning's Trainer on a private module: its steps, its checkpoints, its logged ε."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="the extra `lightning` is not installed")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from lightning.pytorch.tuner.tuning import Tuner

from prudent import ArgumentError, HeldOut, Ledger, LossRelease
from prudent.accounting.relations import ZERO_OUT
from prudent.training import Key
from prudent.training import make_private as made_private
from prudent.training.adapters.lightning import make_private

# Lightning's own advice: more workers, a validation loader, and the like.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec:FutureWarning",  # torch 2.13 has a new way to ask
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
)

RECORDS, BATCH, EPOCHS = 60, 10, 3


def points() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 2, (RECORDS,), generator=draw)
    return TensorDataset(targets[:, None] * 2.0 + torch.randn(RECORDS, 3, generator=draw), targets)


class Classifier(LightningModule):
    def __init__(self, part: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.part = part
        self.validated: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        inputs, targets = batch
        outputs = self.net(inputs) if self.part else self(inputs)
        return functional.cross_entropy(outputs, targets)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        inputs, targets = batch
        self.validated.append(float((self(inputs).argmax(1) == targets).float().mean()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def loader() -> DataLoader[Any]:
    return DataLoader(points(), batch_size=BATCH)


def private(seed: int = 0, module: Classifier | None = None, **options: Any) -> Any:
    budget = {"epsilon": 50.0, "delta": 1e-5, "epochs": EPOCHS, "key": Key.from_seed(seed)}
    return make_private(Classifier() if module is None else module, loader(), **budget | options)


def trainer(folder: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    chosen = {"max_epochs": EPOCHS, "accelerator": "cpu", "default_root_dir": folder}
    return Trainer(**quiet | {"enable_checkpointing": False} | chosen | options)


def test_fits_as_a_loop_of_ones_own(tmp_path: Path) -> None:
    module, batches = private()
    names = list(module.state_dict())
    done = trainer(tmp_path)
    done.fit(module, batches, DataLoader(points(), batch_size=RECORDS))
    assert list(module.state_dict()) == names
    assert type(copy.deepcopy(module.net)) is nn.Sequential
    optimizer = done.optimizers[0]
    assert optimizer.steps == optimizer.plan.steps == EPOCHS * 6
    assert float(done.callback_metrics["epsilon"]) == pytest.approx(optimizer.epsilon(1e-5))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5**4)
    assert module.validated[-1] > 0.7

    plain = Classifier()
    model, own, batches = made_private(
        plain.net,
        torch.optim.SGD(plain.net.parameters(), lr=0.5),
        loader(),
        epsilon=50.0,
        delta=1e-5,
        epochs=EPOCHS,
        key=Key.from_seed(0),
    )
    for _ in range(EPOCHS):
        for inputs, targets in batches:
            own.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            own.step()
        own.param_groups[0]["lr"] *= 0.5
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_checkpoint_resumes(tmp_path: Path) -> None:
    module, batches = private()
    first = trainer(tmp_path, max_epochs=1)
    first.fit(module, batches)
    assert first.optimizers[0].steps == 6
    first.save_checkpoint(tmp_path / "run.ckpt")
    module, batches = private(seed=1)
    second = trainer(tmp_path)
    second.fit(module, batches, ckpt_path=tmp_path / "run.ckpt")
    assert second.optimizers[0].steps == EPOCHS * 6
    assert second.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5**4)
    assert float(second.callback_metrics["epsilon"]) == pytest.approx(
        second.optimizers[0].plan.epsilon(1e-5)
    )


def test_another_fit_forgets_no_step(tmp_path: Path) -> None:
    module, batches = private()
    trainer(tmp_path, max_epochs=2).fit(module, batches)
    again = trainer(tmp_path, max_epochs=2)
    with pytest.raises(ValueError, match="at most"):
        again.fit(module, batches)
    assert again.optimizers[0].steps == EPOCHS * 6


def test_a_part_of_the_module_can_be_the_model(tmp_path: Path) -> None:
    module = Classifier(part=True)
    module, batches = private(module=module)
    with pytest.raises(ValueError, match="make the part private"):
        trainer(tmp_path).fit(module, batches)
    module = Classifier(part=True)
    module, batches = private(module=module, model=module.net)
    done = trainer(tmp_path)
    done.fit(module, batches)
    assert done.optimizers[0].steps == EPOCHS * 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"gradient_clip_val": 1.0}, "gradient_clip_val"),
        ({"max_epochs": EPOCHS + 1}, "max_epochs"),
        ({"max_time": {"hours": 1}}, "callbacks"),
        ({"detect_anomaly": True}, "detect_anomaly"),
        ({"callbacks": [GradientAccumulationScheduler({1: 2})]}, "accumulate_grad_batches"),
    ],
)
def test_trainers_that_the_plan_does_not_cover(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with Ledger(tmp_path / "budget.db", epsilon=60.0, delta=1e-4, relation=ZERO_OUT) as ledger:
        module, batches = private(ledger=ledger)
        with pytest.raises(ArgumentError) as error:
            trainer(tmp_path, **options).fit(module, batches)
        assert error.value.argument == named
        assert ledger.history() == []


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    class Two(Classifier):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=1.0) for _ in range(2)]

    module, batches = private(module=Two())
    with pytest.raises(ArgumentError, match="one optimizer"):
        trainer(tmp_path).fit(module, batches)


class Logging(Classifier):
    """Logs its loss, as tutorials do."""

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.log("train_loss", loss, on_epoch=True)
        return loss


class Following(Logging):
    """Lowers its learning rate when the training loss no longer falls."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        following = {"scheduler": scheduler, "monitor": "train_loss_epoch"}
        return {"optimizer": optimizer, "lr_scheduler": following}


@pytest.mark.parametrize(
    ("module", "callbacks"),
    [
        (Logging, [EarlyStopping("train_loss")]),
        (Logging, [EarlyStopping("train_loss_epoch")]),
        (Logging, [ModelCheckpoint(monitor="train_loss", save_top_k=1)]),
        (Logging, [ModelCheckpoint(filename="{epoch}-{train_loss:.2f}")]),
        (Following, []),
    ],
    ids=["stopping", "epochs", "choosing", "naming", "learning rate"],
)
def test_what_is_not_paid_for_decides_nothing(
    module: type[Classifier], callbacks: list[Any], tmp_path: Path
) -> None:
    made, batches = private(module=module())
    run = trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True)
    with pytest.raises(ArgumentError, match="train_loss") as error:
        run.fit(made, batches)
    assert error.value.argument == "monitor"
    assert run.optimizers[0].steps == 0
    assert not list(tmp_path.rglob("*.ckpt"))


class AtTheEnd(Classifier):
    """Logs what it saw of a batch, and of an epoch, in hooks other than `training_step`."""

    def on_train_batch_end(self, outputs: Any, batch: Any, _: int) -> None:
        self.rows = float(len(batch[0]))
        self.log("held_out_accuracy", self.rows)

    def on_train_epoch_end(self) -> None:
        self.log_dict({"rows": self.rows})


@pytest.mark.parametrize(
    ("make", "taken"),
    [
        (partial(ModelCheckpoint, filename="{held_out_accuracy}", every_n_train_steps=2), 1),
        (partial(ModelCheckpoint, filename="{rows}"), 6),
        (partial(EarlyStopping, "rows", stopping_threshold=1.0, mode="max"), 6),
    ],
    ids=["batch", "epoch", "stopping"],
)
def test_nor_does_what_other_hooks_log(make: Any, taken: int, tmp_path: Path) -> None:
    module, batches = private(module=AtTheEnd())
    run = trainer(tmp_path, callbacks=[make()], enable_checkpointing=True)
    with pytest.raises(ArgumentError) as error:
        run.fit(module, batches)
    assert error.value.argument == "monitor"
    assert run.optimizers[0].steps == taken
    assert not list(tmp_path.rglob("*.ckpt"))


def test_results_of_validation_may_decide(tmp_path: Path) -> None:
    made, batches = private(module=Logging())
    stopping = EarlyStopping("epsilon", check_on_train_epoch_end=True, mode="max")
    run = trainer(tmp_path, callbacks=[stopping], max_epochs=1)
    run.fit(made, batches)
    assert run.optimizers[0].steps == 6


def test_no_learning_rate_is_searched_on_private_records(tmp_path: Path) -> None:
    made, batches = private()
    run = trainer(tmp_path)
    with pytest.raises(ArgumentError, match="search on public records"):
        Tuner(run).lr_find(made, batches)
    assert not run.optimizers or run.optimizers[0].steps == 0


def test_a_ledger_is_charged_once_for_a_run_and_its_continuation(tmp_path: Path) -> None:
    with Ledger(tmp_path / "budget.db", epsilon=60.0, delta=1e-4, relation=ZERO_OUT) as ledger:
        module, batches = private(ledger=ledger)
        assert ledger.history() == []
        first = trainer(tmp_path, max_epochs=1)
        first.fit(module, batches)
        first.save_checkpoint(tmp_path / "run.ckpt")
        (charge,) = ledger.history()
        assert charge.event == first.optimizers[0].plan.event
        assert charge.outcome == {"released": 1}
        module, batches = private(seed=1, ledger=ledger)
        trainer(tmp_path).fit(module, batches, ckpt_path=tmp_path / "run.ckpt")
        assert len(ledger.history()) == 1


class Watching(Classifier):
    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        inputs, targets = batch
        losses = functional.cross_entropy(self(inputs), targets, reduction="none")
        self.watch(losses)
        return losses.sum() / max(1, len(losses))


def test_released_results_stop_training_and_choose_the_model(tmp_path: Path) -> None:
    made, batches = private(
        module=Watching(),
        epsilon=20.0,
        epochs=9,
        watch=LossRelease(loss_every=6, bound=1.0, noise_multiplier=2.0),
        held_out=HeldOut(every=6, noise_multiplier=2.0),
        held_out_set=points(),
    )
    kept = ModelCheckpoint(
        tmp_path, monitor="held_out_accuracy", mode="max", filename="{held_out_accuracy:.3f}"
    )
    stopping = EarlyStopping("held_out_accuracy", mode="max", patience=1)
    run = trainer(tmp_path, callbacks=[stopping, kept], enable_checkpointing=True, max_epochs=9)
    run.fit(made, batches)
    taken = run.optimizers[0].steps
    assert taken % 6 == 0
    assert 6 < taken < 54
    assert float(kept.best_model_score) == pytest.approx(float(stopping.best_score))
    shown = run.callback_metrics
    assert float(shown["held_out_accuracy_noise"]) == pytest.approx(1 / RECORDS)
    assert float(shown["train_loss_noise"]) == pytest.approx(2.0 / BATCH)
    assert Path(kept.best_model_path).exists()


class Pretending(Watching):
    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss = super().training_step(batch, number)
        self.log("held_out_accuracy", loss)
        return loss


def test_a_private_value_is_not_released_by_its_name(tmp_path: Path) -> None:
    made, batches = private(
        module=Pretending(),
        held_out=HeldOut(every=6, noise_multiplier=9.0),
        held_out_set=points(),
    )
    run = trainer(tmp_path, callbacks=[EarlyStopping("held_out_accuracy", mode="max")])
    with pytest.raises(ArgumentError, match="held_out_accuracy"):
        run.fit(made, batches)
    assert run.optimizers[0].steps == 0
