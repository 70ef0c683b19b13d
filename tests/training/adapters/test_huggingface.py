"""Trainer under a plan: the same releases as `Step`, and nothing that is not paid for."""

import copy
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs the extra `huggingface`")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from prudent import ArgumentError, HeldOut, Ledger, LossRelease
from prudent.accounting.events import GaussianTest
from prudent.accounting.relations import ZERO_OUT
from prudent.records import PUBLIC
from prudent.records.people import Units
from prudent.training import AdaptiveTrim, Key, Plan, PoissonSampler, ProposeTestRelease, Sum
from prudent.training.adapters.huggingface import PrivateTrainer
from prudent.training.adapters.huggingface.settings import REFUSALS, check_optimizer, check_reach
from prudent.training.adapters.huggingface.trainer import LogicalRecords, examples_of, padded
from prudent.training.gradients import BookKeeping
from prudent.training.run.reading import HeldOutRecords
from prudent.training.sampling import Draw

Arguments = Callable[..., TrainingArguments]

RECORDS, LENGTH, WORDS = 24, 6, 20
SILENT = 1e-6


class Sentences(torch.utils.data.Dataset[Any]):
    """Made-up sentences of different lengths, padded to a fixed one."""

    def __init__(self, count: int = RECORDS, seed: int = 0, *, causal: bool = False) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, WORDS, (count, LENGTH), generator=draw)
        lengths = torch.randint(3, LENGTH + 1, (count, 1), generator=draw)
        self.mask = (torch.arange(LENGTH) < lengths).long()
        self.ids[self.mask == 0] = 0
        self.causal = causal

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, mask = self.ids[index], self.mask[index]
        labels = torch.where(mask == 1, ids, -100) if self.causal else int(ids[0] > 10)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def bert(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, **sizes, **rates, **ends))


@pytest.fixture
def arguments(tmp_path: Path) -> Arguments:
    def made(**options: Any) -> TrainingArguments:
        usual = {
            "output_dir": str(tmp_path),
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "logging_strategy": "no",
            "save_strategy": "no",
            "optim": "sgd",
            "learning_rate": 1.0,
            "lr_scheduler_type": "constant",
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
        }
        return TrainingArguments(**{**usual, **options})

    return made


def everything(steps: int = 1, clip: float = 0.5) -> Plan:
    """A plan that uses every record in every step, almost without noise."""
    silent = Sum(clip=clip, noise_multiplier=SILENT)
    return Plan(sampling_rate=1.0, steps=steps, aggregation=silent)


def trainer(model: nn.Module, args: TrainingArguments, **options: Any) -> PrivateTrainer:
    causal = isinstance(model, GPT2LMHeadModel)
    usual = {
        "train_dataset": Sentences(causal=causal),
        "eval_dataset": Sentences(8, 1, causal=causal),
        "key": Key.from_seed(0),
        "delta": 1e-3,
    }
    if "epsilon" not in options:
        usual["plan"] = everything()
    return PrivateTrainer(model, args, **{**usual, **options})


def clipped_mean(
    model: nn.Module, data: Any, clip: float, loss: Callable[[Any, dict[str, Tensor]], Tensor]
) -> dict[str, Tensor]:
    """The mean of clipped gradients, from one backward pass per record."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for index in range(len(data)):
        record = data[index]
        row = {name: torch.as_tensor(value)[None] for name, value in record.items()}
        model.zero_grad()
        loss(model(**row), row).backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        for name, gradient in gradients.items():
            total[name] += gradient * min(1.0, clip / norm) / len(data)
    model.zero_grad()
    return total


def own_loss(outputs: Any, row: dict[str, Tensor]) -> Tensor:
    loss: Tensor = outputs.loss
    return loss


def smoothed(outputs: Any, row: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(outputs.logits, row["labels"], label_smoothing=0.1)


def squared(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return (outputs.logits[:, 0] - labels).square().mean()


@pytest.mark.parametrize(
    ("make", "settings", "options", "loss"),
    [
        (bert, {}, {}, own_loss),
        (bert, {"gradient_accumulation_steps": 2}, {}, own_loss),
        (gpt2, {}, {}, own_loss),
        (bert, {"label_smoothing_factor": 0.1}, {}, smoothed),
        (
            bert,
            {},
            {"compute_loss_func": squared},
            lambda outputs, row: squared(outputs, row["labels"]),
        ),
    ],
    ids=["masks", "chunks, run twice", "tied weights", "label smoothing", "a loss of one's own"],
)
def test_an_update_is_the_mean_of_clipped_gradients(
    make: Callable[[], nn.Module],
    settings: dict[str, Any],
    options: dict[str, Any],
    loss: Callable[[Any, dict[str, Tensor]], Tensor],
    arguments: Arguments,
) -> None:
    model = make()
    before = copy.deepcopy(model)
    trainer(model, arguments(**settings), **options).train()
    data = Sentences(causal=make is gpt2)
    expected = clipped_mean(before, data, 0.5, loss)
    for name, parameter in model.named_parameters():
        moved = before.get_parameter(name) - parameter
        torch.testing.assert_close(moved, expected[name], rtol=1e-3, atol=1e-6, msg=name)


class Authored(Sentences):
    """Sentences, each with the number of its author."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "author": index % 5}


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_per_person_is_the_mean_of_clipped_gradients_of_people(
    recompute: bool, arguments: Arguments
) -> None:
    """The column with the unit is no input; the model computes a loss of one record at a time."""
    model = gpt2()
    before = copy.deepcopy(model)
    made = trainer(
        model,
        arguments(remove_unused_columns=not recompute, gradient_checkpointing=recompute),
        train_dataset=Authored(causal=True),
        eval_dataset=Authored(8, 1, causal=True),
        unit="author",
        records_per_person=5,
    )
    made.train()
    assert made.plan.expected_batch is None
    assert made._step is not None
    assert made._step.expected_batch == 5
    data = Sentences(causal=True)
    total = {name: torch.zeros_like(p) for name, p in before.named_parameters()}
    for author in range(5):
        before.zero_grad()
        own = range(author, RECORDS, 5)
        for index in own:
            row = {name: torch.as_tensor(value)[None] for name, value in data[index].items()}
            (before(**row).loss / len(own)).backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in before.parameters()))
        for name, parameter in before.named_parameters():
            total[name] += parameter.grad * min(1.0, 0.5 / norm) / 5
    for name, parameter in model.named_parameters():
        change = before.get_parameter(name) - parameter
        torch.testing.assert_close(change, total[name], rtol=1e-3, atol=1e-6, msg=name)
    assert made.evaluate()["eval_loss"] > 0
    assert "one person" in repr(made)


class StopsAt(TrainerCallback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self.steps


def test_batches_are_poisson_samples_each_used_once(arguments: Arguments) -> None:
    key = Key.from_seed(3)
    plan = Plan(sampling_rate=1 / 3, steps=7, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    own = trainer(bert(), arguments(), plan=plan, key=key)
    loader = own.get_train_dataloader()
    assert len(loader) == 3
    sampler = PoissonSampler(RECORDS, 8 / RECORDS, key=key)
    data = Sentences()
    for number, batch in enumerate(loader):
        expected = sampler.batch(number)
        for part, ids, valid in zip(batch.parts, expected.ids, expected.valid, strict=True):
            assert int(part.readable.sum()) == int(valid.sum())
            assert torch.equal(part.batch[0]["input_ids"][part.readable], data.ids[ids[valid]])
    own.add_callback(StopsAt(5))
    own.train()
    with pytest.raises(RuntimeError, match="batch of update 5"):
        own.training_step(own.model, batch)


def drops_words(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collator that draws random numbers."""
    row = {name: torch.stack([torch.as_tensor(r[name]) for r in records]) for name in records[0]}
    row["input_ids"] = torch.where(torch.rand(row["input_ids"].shape) < 0.2, 1, row["input_ids"])
    return row


@pytest.mark.parametrize(
    ("rule", "num_bands"),
    [
        (
            ProposeTestRelease(
                clip=1.0,
                propose=0.5,
                noise_multiplier=0.5,
                failure=0.1,
                test=GaussianTest(0.5),
                trim=AdaptiveTrim(first=0.3),
            ),
            1,
        ),
        pytest.param(Sum(clip=1.0, noise_multiplier=0.5), 3, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("at", [3, 4], ids=["end of an epoch", "within an epoch"])
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(
    rule: Sum | ProposeTestRelease,
    num_bands: int,
    at: int,
    arguments: Arguments,
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {
        "plan": Plan(sampling_rate=1 / 3, steps=6, aggregation=rule, num_bands=num_bands),
        "data_collator": drops_words,
        "train_dataset": list(Sentences()),
        "key": None,
    }
    args = arguments(
        optim="adamw_torch",
        learning_rate=1e-2,
        logging_strategy="steps",
        logging_steps=2,
        save_strategy="steps",
        save_steps=at,
    )
    whole = trainer(bert(0.2), args, **options)
    whole.train()
    torch.manual_seed(99)
    again = trainer(bert(0.2), args, **options)
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name
    assert whole._step is not None
    assert again._step is not None
    assert torch.equal(again._step.trim, whole._step.trim)
    histories = [each.state.log_history for each in (whole, again)]
    assert histories[0] == histories[1]
    assert ("pass_rate" in histories[0][-1]) == isinstance(rule, ProposeTestRelease)


class Killed(BaseException):
    """Ends a run like a kill does: nothing after it happens."""


class KillsAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step == self.step:
            raise Killed


def halved(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"], labels) / 2


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("records", "change", "said"),
    [
        (list(Sentences()), {"compute_loss_func": halved}, "the loss"),
        (list(Sentences()), {"example": Sentences(1)[0]}, "the loss or what reads"),
    ],
    ids=["loss", "reading"],
)
def test_lost_steps_that_may_differ_are_counted_and_not_repeated(
    records: Any,
    change: dict[str, Any],
    said: str,
    arguments: Arguments,
    tmp_path: Path,
) -> None:
    """The same noise on another sum is no noise on their difference."""
    args = arguments(save_strategy="steps", save_steps=3)
    options: dict[str, Any] = {"plan": everything(8), "train_dataset": records}
    first = trainer(bert(), args, callbacks=[KillsAfter(5)], **options)
    with pytest.raises(Killed):
        first.train()
    again = trainer(bert(), args, **options, **change)
    with pytest.warns(RuntimeWarning, match=f"steps 4 to 5, .*were: {said}"):
        again.train(str(tmp_path / "checkpoint-3"))
    assert again._continuity.key != first._continuity.key
    assert (again.lost, again.state.global_step) == (2, 6)
    assert again._step is not None
    assert again._step.taken == 8
    # What the older checkpoint proves has ended with the new key.
    late = trainer(bert(), args, **options)
    said = "after which all may have been taken"
    with pytest.raises(ArgumentError, match=said), pytest.warns(match="steps 4 to 8"):
        late.train(str(tmp_path / "checkpoint-3"))
    (paid,) = tmp_path.glob("paid-*.json")
    paid.unlink()
    with pytest.raises(ArgumentError, match="a checkpoint beside paid-"):
        trainer(bert(), args, **options).train(str(tmp_path / "checkpoint-3"))


def test_repeated_steps_that_release_something_else_get_a_new_key(
    arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fingerprint sees what patches a layer of torch."""
    args = arguments(save_strategy="steps", save_steps=3)
    options: dict[str, Any] = {"plan": everything(8), "train_dataset": list(Sentences())}
    with pytest.raises(Killed):
        trainer(bert(), args, callbacks=[KillsAfter(5)], **options).train()
    own, folder = nn.Linear.forward, str(tmp_path / "checkpoint-3")
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * own(self, x))
    again = trainer(bert(), args, **options)
    with pytest.raises(RuntimeError, match="Nothing was released"):
        again.train(folder)
    assert all(p.grad is None for p in again.model.parameters())
    monkeypatch.undo()  # whatever runs now, what was released before is not repeated
    last = trainer(bert(), args, **options)
    with pytest.warns(RuntimeWarning, match="steps 4 to 5, .*not repeated"):
        last.train(folder)
    assert last._continuity.key != again._continuity.key
    assert (last.lost, last.state.global_step) == (2, 6)


def test_two_runs_at_once_in_a_folder_are_refused(arguments: Arguments) -> None:
    """Both would take the same steps with noise of their own, and one of them is paid for."""
    args = arguments(save_strategy="steps", save_steps=1)

    class Another(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            with pytest.raises(ArgumentError, match="a folder that no other run is using"):
                trainer(bert(), args, plan=everything(1)).train()

    trainer(bert(), args, plan=everything(1), callbacks=[Another()]).train()


def test_records_are_those_the_trainer_was_made_with(arguments: Arguments) -> None:
    made = trainer(bert(), arguments(), plan=everything(2))
    made.train_dataset = list(made.train_dataset)[:4]
    with pytest.raises(RuntimeError, match="make a new trainer"):
        made.train()


def test_a_checkpoint_is_for_its_own_run(arguments: Arguments, tmp_path: Path) -> None:
    args = arguments(save_strategy="steps", save_steps=1)
    first = trainer(bert(), args, plan=everything(2))
    first.train()
    with pytest.raises(RuntimeError, match="already trained"):
        first.train()
    folder = tmp_path / "checkpoint-1"
    assert (folder / "checkpoint.pt").stat().st_mode & 0o077 == 0
    with pytest.raises(ArgumentError, match="same plan"):
        trainer(bert(), args, plan=everything(2, clip=1.0)).train(str(folder))
    with pytest.raises(ArgumentError, match="same records"):
        trainer(bert(), args, plan=everything(2), train_dataset=Sentences(23)).train(str(folder))
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArgumentError, match=r"whose model\.safetensors is damaged or missing"):
        trainer(bert(), args, plan=everything(2)).train(str(folder))
    weights.write_bytes(content)
    (folder / "checkpoint.pt").unlink()
    with pytest.raises(ArgumentError, match="complete checkpoint"):
        trainer(bert(), args, plan=everything(2)).train(str(folder))


def test_a_run_ends_at_the_end_of_its_last_epoch(arguments: Arguments) -> None:
    """Also with a batch size that does not divide the records: 24 / 7 are four steps."""
    own = trainer(
        bert(),
        arguments(num_train_epochs=2, per_device_train_batch_size=7),
        plan=None,
        epsilon=8.0,
    )
    own.train()
    assert own.plan.steps == 8
    assert own.state.epoch == 2.0


@pytest.mark.parametrize(
    ("at", "saves", "only", "said"),
    [
        ("on_train_begin", "no", False, "Nothing was charged."),
        ("on_step_end", "no", False, "after 1 steps. Its ledger was charged.*cannot be resumed"),
        ("on_step_end", "steps", True, "after 1 steps. Its ledger was charged.*cannot be resumed"),
        ("on_step_end", "steps", False, "after 1 steps. Its ledger was.*goes on from a checkpo"),
    ],
)
def test_an_interruption_says_whether_anything_was_charged(
    arguments: Arguments, tmp_path: Path, at: str, saves: str, only: bool, said: str
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-3, relation=ZERO_OUT) as ledger:
        args = arguments(save_strategy=saves, save_only_model=only)
        own = trainer(bert(), args, plan=None, epsilon=8.0, ledger=ledger)
        impatient = type("Impatient", (TrainerCallback,), {at: interrupt})()
        own.callback_handler.callbacks.insert(0, impatient)  # before the private step is made
        with pytest.raises(KeyboardInterrupt) as interrupted:
            own.train()
        assert len(ledger.history()) == (at == "on_step_end")
    assert re.search(said, interrupted.value.__notes__[0])


def test_logs_have_epsilon_and_nothing_private(arguments: Arguments) -> None:
    own = trainer(
        bert(),
        arguments(
            num_train_epochs=1, eval_strategy="epoch", logging_strategy="steps", logging_steps=1
        ),
        plan=None,
        epsilon=8.0,
    )
    output = own.train()
    assert math.isnan(output.training_loss)
    history = own.state.log_history
    shown = [entry for entry in history if "epsilon" in entry]
    epsilons = [entry["epsilon"] for entry in shown]
    assert epsilons == sorted(epsilons)
    assert 7.9 < epsilons[-1] <= 8.0
    assert epsilons[-1] == pytest.approx(own.epsilon)
    assert len(shown) == own.plan.steps + 1
    private = {"loss", "train_loss", "total_flos", "train_runtime", "train_steps_per_second"}
    assert not private & {name for e in history for name in e}
    assert not {"train_loss", "total_flos"} & set(output.metrics)
    assert own.state.total_flos == 0
    (evaluated,) = [entry for entry in history if "eval_loss" in entry]
    assert "epsilon" not in evaluated


def test_evaluation_is_that_of_trainer(arguments: Arguments) -> None:
    own = trainer(bert(), arguments())
    plain = Trainer(own.model, arguments(), eval_dataset=own.eval_dataset)
    timed = ("runtime", "per_second", "preparation_time")
    ours, theirs = (
        {k: v for k, v in each.evaluate().items() if not k.endswith(timed)} for each in (own, plain)
    )
    assert ours == theirs
    assert torch.equal(
        torch.as_tensor(own.predict(own.eval_dataset).predictions),
        torch.as_tensor(plain.predict(own.eval_dataset).predictions),
    )


# ---- records -------------------------------------------------------------------------------------


class Tokens:
    """A tokenizer's collator: pads to the longest record, or to a multiple."""

    def __init__(self) -> None:
        self.pad_to_multiple_of: int | None = None

    def __call__(self, records: list[dict[str, Any]]) -> dict[str, Tensor]:
        longest = max(len(record["input_ids"]) for record in records)
        multiple = self.pad_to_multiple_of or 1
        size = -(-longest // multiple) * multiple
        rows = [list(r["input_ids"]) + [0] * (size - len(r["input_ids"])) for r in records]
        return {"input_ids": torch.tensor(rows)}


def drawn(data: list[Any], example: dict[str, Tensor], collate: Any) -> Any:
    ids = torch.arange(len(data))[None]
    draw = Draw(0, ids, torch.ones_like(ids, dtype=torch.bool), PUBLIC)
    (part,) = LogicalRecords(Units.of(data), collate, example).__getitems__(draw).parts
    return part


def test_a_record_does_not_change_the_rows_of_others() -> None:
    collate = padded(Tokens(), 4)
    example = examples_of([{"input_ids": [9]}, {"input_ids": [9, 9]}], collate)
    rows = [[1, 2], [3], [5], [4] * 9]
    data: list[Any] = [{"input_ids": row} for row in rows]
    part = drawn(data, example, collate)
    expected = [[1, 2, 0, 0], [3, 0, 0, 0], [5, 0, 0, 0], [4, 4, 4, 4]]
    assert part.batch[0]["input_ids"].tolist() == expected
    assert part.readable.tolist() == [True] * 4
    for odd in (None, {}, {"input_ids": ["x"]}, {"input_ids": [0.5]}):
        other = drawn([*data[:3], odd], example, collate)
        assert torch.equal(other.batch[0]["input_ids"][:3], part.batch[0]["input_ids"][:3])
        assert other.readable.tolist() == [True, True, True, False]
    short = drawn(data, example, Tokens())  # shorter than the form, but for the last
    assert short.readable.tolist() == [False] * 3 + [True]


def test_padding_is_left_out_unless_every_part_must_have_one_shape() -> None:
    data = [{"input_ids": [1]}] * 32
    draw = Draw(0, torch.arange(32)[None], (torch.arange(32) < 3)[None], PUBLIC)
    for whole, rows in ((False, 8), (True, 32)):
        records = LogicalRecords(
            Units.of(data), Tokens(), {"input_ids": torch.zeros(1, 1).long()}, whole=whole
        )
        (part,) = records.__getitems__(draw).parts
        assert part.batch[0]["input_ids"].shape == (rows, 1)
        assert part.readable.tolist() == [True] * 3 + [False] * (rows - 3)
        assert part.ids.tolist() == list(range(rows))


def test_records_without_labels_are_told_apart_from_a_bug(arguments: Arguments) -> None:
    bare = [
        {name: row[name] for name in ("input_ids", "attention_mask")}
        for row in map(Sentences().__getitem__, range(RECORDS))
    ]
    with pytest.raises(ValueError, match=r"Expected a loss .* Give every record its `labels`"):
        trainer(bert(), arguments(), train_dataset=bare, eval_dataset=bare[:8]).train()


def test_a_collator_that_pads_to_the_longest_needs_a_public_length(arguments: Arguments) -> None:
    with pytest.raises(ArgumentError, match="max_length"):
        examples_of([{"input_ids": [9]}, {"input_ids": [9, 9]}], Tokens())
    with pytest.raises(ArgumentError, match="pad_to_multiple_of"):
        padded(drops_words, 4)
    with pytest.raises(ArgumentError, match="example"):
        trainer(bert(), arguments(), eval_dataset=None).train()


def test_a_record_that_cannot_be_read_counts_as_absent(arguments: Arguments) -> None:
    class Broken(Sentences):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 5:
                raise OSError("disk")
            return super().__getitem__(index)

    model = bert()
    before = copy.deepcopy(model)
    trainer(model, arguments(), train_dataset=Broken()).train()
    rest = [Sentences()[i] for i in range(RECORDS) if i != 5]
    expected = clipped_mean(before, rest, 0.5, own_loss)
    name = "classifier.weight"
    moved = before.get_parameter(name) - model.get_parameter(name)
    torch.testing.assert_close(moved * RECORDS / 23, expected[name], rtol=1e-3, atol=1e-6)


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "Poisson"),
        ({"auto_find_batch_size": True}, "not counted"),
        ({"include_num_input_tokens_seen": "all"}, "tokens"),
        ({"skip_memory_metrics": False}, "private"),
        ({"ignore_data_skip": True}, "already used"),
        ({"optim": "adalomo"}, "before noise"),
        ({"torch_compile": True}, "CUDA graph"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"enable_jit_checkpoint": True}, "no key"),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}}},
            "gradient_accumulation_steps",
        ),
    ],
)
def test_settings_that_would_break_the_guarantee_are_refused(
    settings: dict[str, Any], match: str, arguments: Arguments
) -> None:
    with pytest.raises(ArgumentError, match=match):
        trainer(bert(), arguments(**settings), plan=None, epsilon=8.0)


def test_settings_that_cannot_be_made_here_are_refused(arguments: Arguments) -> None:
    wrong = {name: is_wrong for name, is_wrong, *_ in REFUSALS}
    assert all(wrong[name](True) for name in ("fp16", "deepspeed", "fsdp"))
    assert all(wrong[name](2) and not wrong[name](1) for name in ("world_size", "n_gpu"))
    args = arguments()  # the checkpoint holds the key
    args.push_to_hub, args.hub_strategy = True, type(args.hub_strategy)("all_checkpoints")
    with pytest.raises(ArgumentError, match="key"):
        trainer(bert(), args)


def test_arguments_that_would_break_the_guarantee_are_refused(arguments: Arguments) -> None:
    data = Sentences()
    with pytest.raises(ArgumentError, match="public"):
        trainer(bert(), arguments(), train_dataset=data, eval_dataset=data)
    with pytest.raises(ArgumentError, match="map-style"):
        trainer(bert(), arguments(), train_dataset=iter(()))
    with pytest.raises(ArgumentError, match="one of the two"):
        trainer(bert(), arguments(), plan=None)
    with pytest.raises(ArgumentError, match="Expected delta in"):
        PrivateTrainer(bert(), arguments(), train_dataset=data, epsilon=3.0)
    with pytest.raises(TypeError, match="max_grad_norm: max_grad_norm of TrainingArguments"):
        trainer(bert(), arguments(), max_grad_norm=1.0, target_epsilon=3.0)
    assert "(0 taken, 1 left): ε ≤ " in repr(trainer(bert(), arguments()))
    with pytest.raises(NotImplementedError, match="paid for"):
        trainer(bert(), arguments()).hyperparameter_search()

    class Own(PrivateTrainer):
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            return super().compute_loss(*args, **options)

    with pytest.raises(ArgumentError, match="compute_loss_func"):
        Own(bert(), arguments(), train_dataset=data, plan=everything(), delta=1e-3)


# ---- adapters and self-tests ---------------------------------------------------------------------


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    model: nn.Module = peft.get_peft_model(bert(), config)
    return model


def test_adapters_move_and_frozen_weights_do_not(arguments: Arguments) -> None:
    model = adapted()
    before = copy.deepcopy(model.state_dict())
    own = trainer(model, arguments(learning_rate=0.1), plan=everything(3))
    own.train()
    after = own.model.state_dict()
    assert after.keys() == before.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert moved == trained
    assert any("lora_A" in name for name in moved)


def test_adapters_that_the_optimizer_misses_are_noticed(arguments: Arguments) -> None:
    model = adapted()
    heads = [p for name, p in model.named_parameters() if "classifier" in name]
    optimizers = (torch.optim.SGD(heads, lr=0.1), None)
    with pytest.raises(ArgumentError, match="lora_A"):
        trainer(model, arguments(), optimizers=optimizers).train()
    layer, stranger = nn.Linear(1, 1), nn.Parameter(torch.ones(1))
    with pytest.raises(ArgumentError, match="alone"):
        check_optimizer(layer, torch.optim.SGD([*layer.parameters(), stranger], lr=0.1))
    own = trainer(bert(), arguments())
    own.optimizer = torch.optim.LBFGS(own.model.parameters())
    with pytest.raises(ArgumentError, match="closure"):
        own.train()


def test_a_model_that_no_step_can_be_taken_with_is_not_paid_for(
    arguments: Arguments, tmp_path: Path
) -> None:
    model = bert()
    model.classifier = nn.Sequential(model.classifier, nn.BatchNorm1d(2))
    model.eval()  # as `from_pretrained` returns it
    with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-3, relation=ZERO_OUT) as ledger:
        own = trainer(model, arguments(), plan=None, epsilon=8.0, ledger=ledger)
        with pytest.raises(ValueError, match="keep records apart, got BatchNorm1d"):
            own.train()
        assert ledger.history() == []


def test_weights_that_the_loss_does_not_reach_are_named() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.lost = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            return (self.used(inputs) + self.lost(inputs).detach()).sum(1)

    model = Detached()
    engine = BookKeeping(model, lambda outputs, _: outputs)
    with pytest.warns(RuntimeWarning, match=r"reach lost\.weight, lost\.bias: only"):
        check_reach(engine, torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    model.used.requires_grad_(False)
    with pytest.raises(ArgumentError, match="none of"):
        check_reach(engine, torch.ones(1, 2))


def test_bfloat16_and_checkpointed_layers(arguments: Arguments) -> None:
    model = bert()
    before = copy.deepcopy(model)
    trainer(model, arguments(bf16=True, gradient_checkpointing=True)).train()
    expected = clipped_mean(before, Sentences(), 0.5, own_loss)
    name = "classifier.weight"
    moved = before.get_parameter(name) - model.get_parameter(name)
    torch.testing.assert_close(moved, expected[name], rtol=0.1, atol=1e-2)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.fixture(autouse=True)
def quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def test_a_saved_model_has_a_receipt(arguments: Arguments, tmp_path: Path) -> None:
    noisy = Plan(
        sampling_rate=0.5,
        steps=2,
        aggregation=Sum(clip=0.5, noise_multiplier=3.0),
        watch=LossRelease(loss_every=1, bound=2.0),
    )
    private = trainer(bert(), arguments(logging_steps=1), plan=noisy)
    private.save_model(str(tmp_path / "before"))
    assert not (tmp_path / "before" / "receipt.json").exists()
    private.train()
    private.save_model(str(tmp_path / "after"))
    receipt = json.loads((tmp_path / "after" / "receipt.json").read_text("utf-8"))
    assert receipt["epsilon"] == noisy.epsilon(1e-3)
    assert not (tmp_path / "after" / "README.md").exists()
    (logged,) = [entry for entry in private.state.log_history if "loss" in entry]
    assert logged["loss_noise"] == pytest.approx(20 / (0.5 * len(Sentences())) / math.sqrt(2))


def standing_of_answer(folder: Path) -> str:
    """What the check of a receipt says of the answer that the ledger notes."""
    pytest.importorskip("flint")
    from prudent_verify.checks import verify

    found = {each.claim: each.standing for each in verify(folder / "receipt.json").findings}
    return found["answer"]


class TestLedger:
    NOISY = Plan(sampling_rate=0.5, steps=2, aggregation=Sum(clip=0.5, noise_multiplier=4.0))

    def test_a_run_and_its_continuation_are_charged_once(
        self, arguments: Arguments, tmp_path: Path
    ) -> None:
        args = arguments(save_strategy="steps", save_steps=1)
        with Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-3, relation=ZERO_OUT) as ledger:
            run = trainer(bert(), args, plan=self.NOISY, ledger=ledger)
            assert ledger.history() == []
            run.train()
            (charge,) = ledger.history()
            assert (charge.event, charge.delta) == (self.NOISY.event, 1e-3)
            assert charge.outcome == {"released": 1}
            assert [standing_of_answer(tmp_path / f"checkpoint-{n}") for n in (1, 2)] == [
                "not checked",
                "proved",
            ]
            run.save_model(str(tmp_path / "saved"))
            assert standing_of_answer(tmp_path / "saved") == "proved"
            again = trainer(bert(), args, plan=self.NOISY, ledger=ledger)
            again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
            assert len(ledger.history()) == 1
            trainer(bert(), args, plan=self.NOISY, ledger=ledger).train()
            assert len(ledger.history()) == 2


class TestHeldOut:
    PLAN = Plan(
        sampling_rate=0.5,
        steps=6,
        aggregation=Sum(clip=0.5, noise_multiplier=3.0),
        held_out=HeldOut(every=2, noise_multiplier=4.0),
    )

    def values(self, run: PrivateTrainer) -> dict[int, float]:
        name = "eval_held_out_accuracy"
        found = {e["step"]: e[name] for e in run.state.log_history if name in e}
        noises = {e[f"{name}_noise"] for e in run.state.log_history if name in e}
        assert noises == {4.0 / 2 / 30}
        return found

    @pytest.mark.parametrize("public", [False, pytest.param(True, marks=pytest.mark.thorough)])
    def test_the_best_model_and_when_to_stop_follow_what_is_released(
        self, arguments: Arguments, public: bool
    ) -> None:
        args = arguments(
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="held_out_accuracy",
        )
        run = trainer(
            bert(),
            args,
            plan=self.PLAN,
            held_out_set=Sentences(30, seed=5),
            callbacks=[EarlyStoppingCallback(early_stopping_patience=1)],
            key=Key.from_seed(3),
            **({} if public else {"eval_dataset": None, "example": Sentences(1)[0]}),
        )
        run.train()
        values = self.values(run)
        best = max(values, key=values.__getitem__)
        assert best < 6
        assert list(values) == list(range(2, best + 3, 2))  # one release after the best
        assert run.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
        again = run.evaluate() if public else {}  # after training nothing more is released
        assert "eval_held_out_accuracy" not in again

    def test_an_evaluation_before_the_first_step_repeats_no_release(
        self, arguments: Arguments, tmp_path: Path
    ) -> None:
        def run(**resumed: Any) -> list[int]:
            options = {"save_strategy": "steps", "save_steps": 2, "eval_on_start": True}
            run = trainer(
                bert(),
                arguments(**options),
                plan=attrs.evolve(self.PLAN, steps=3),
                held_out_set=Sentences(30, seed=5),
                eval_dataset=None,
                example=Sentences(1)[0],
                key=None,
            )
            run.train(**resumed)
            history = run.state.log_history
            return [e["step"] for e in history if "eval_held_out_accuracy" in e]

        assert run() == [2, 3]
        assert run(resume_from_checkpoint=str(tmp_path / "checkpoint-2")) == [2, 3]

    @pytest.mark.parametrize("several", [False, True])
    def test_the_time_of_an_evaluation_is_that_of_public_records(
        self,
        arguments: Arguments,
        monkeypatch: pytest.MonkeyPatch,
        several: bool,
    ) -> None:
        now, release = [1.0], HeldOutRecords.release

        def slow(*given: Any) -> dict[str, float]:
            now[0] += 100
            return release(*given)

        monkeypatch.setattr(HeldOutRecords, "release", slow)
        monkeypatch.setattr("transformers.trainer.time.time", lambda: now[0])
        public = Sentences(8, 1)
        run = trainer(
            bert(),
            arguments(),
            plan=attrs.evolve(self.PLAN, steps=3),
            held_out_set=Sentences(30, seed=5),
            eval_dataset={"one": public, "other": public} if several else public,
        )
        run.train()
        assert list(self.values(run)) == [2, 3]
        times = [v for e in run.state.log_history for n, v in e.items() if n.endswith("_runtime")]
        assert times == [0.0] * 2 * (1 + several)

    @pytest.mark.parametrize("among", [lambda data: data, lambda data: {"all": data}])
    def test_held_out_records_are_not_evaluated_without_noise(
        self, arguments: Arguments, among: Callable[[Any], Any]
    ) -> None:
        data = Sentences(9, seed=5)
        with pytest.raises(ArgumentError, match="public records, got held_out_set"):
            trainer(
                bert(), arguments(), plan=self.PLAN, held_out_set=data, eval_dataset=among(data)
            )

    def test_the_loss_is_the_mean_of_those_of_records_alone(self, arguments: Arguments) -> None:
        settings = HeldOut(every=1, metric="loss", bound=3.0, noise_multiplier=SILENT)
        plan = attrs.evolve(everything(), held_out=settings)
        data, model = Sentences(9, seed=5, causal=True), gpt2()
        run = trainer(model, arguments(), plan=plan, held_out_set=data)
        run.train()
        (found,) = [e["eval_held_out_loss"] for e in run.state.log_history if "eval_loss" in e]
        model.eval()
        with torch.no_grad():
            rows = [{n: torch.as_tensor(v)[None] for n, v in data[i].items()} for i in range(9)]
            losses = [min(3.0, float(model(**row).loss)) for row in rows]
        assert found == pytest.approx(sum(losses) / 9, abs=1e-5)

    @pytest.mark.thorough
    def test_epsilon_leaves_room_for_what_is_watched(self, arguments: Arguments) -> None:
        watched = {
            "watch": LossRelease(loss_every=1, bound=2.0),
            "held_out": HeldOut(every=1, noise_multiplier=9.0),
        }
        data = Sentences(9, seed=5)
        options = {"epsilon": 3.0, "held_out_set": data, **watched}
        run = trainer(bert(), arguments(max_steps=4), **options)
        assert {name: getattr(run.plan, name) for name in watched} == watched
        assert run.epsilon <= 3.0
        with pytest.raises(ArgumentError, match="held_out"):
            trainer(bert(), arguments(), plan=everything(), held_out=watched["held_out"])
        with pytest.raises(ArgumentError, match="held_out_set"):
            trainer(bert(), arguments(), plan=self.PLAN)
