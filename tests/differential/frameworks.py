"""Entries by other ways: Hugging Face, Lightning, Flower, several processes, certificates."""

import multiprocessing
import tempfile
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from prudent.certify import CertifiedClassifier
from prudent.training import Execution, Key, Plan, Sum, fit
from prudent.training.adapters.federated import RoundRelease
from tests.differential import drawing, odd
from tests.differential.entries import (
    COUNT,
    ENTRIES,
    PLAN,
    SILENT,
    Entry,
    Items,
    OfPeople,
    Training,
    cross_entropy,
    leaving_out,
    plant_shared_streams,
    weights_of,
)


class Words(nn.Module):
    """A model of texts that computes its own loss, as Hugging Face's do; -100 is ignored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(20, 5), nn.Linear(5, 20)
        self.double()

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(torch.tanh(self.embed(input_ids)))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class Texts(Items):
    """Texts of which some words are replaced at random while they are read."""

    def __getitem__(self, index: int) -> Any:
        record = self.records[index]
        ids = torch.as_tensor(record["input_ids"])
        other = torch.randint(0, 20, ids.shape)
        return {**record, "input_ids": torch.where(torch.rand(ids.shape) < 0.5, other, ids)}


def text(words: Any, labels: Any = None) -> dict[str, Any]:
    return {"input_ids": words, "labels": words if labels is None else labels}


TEXTS = [text([index % 20, (3 * index) % 20, 7, index**2 % 20]) for index in range(COUNT)]
ODD_TEXTS = {
    "far": text([1, 1, 1, 1]),
    "longer": text([1] * 9),
    "shorter": text([1]),
    "partly ignored": text([1, 2, 3, 4], [-100, 2, -100, 4]),
    "wholly ignored": text([1, 2, 3, 4], [-100] * 4),
    "no word": text([1, 2, 3, 99]),
    "half": text([0.5] * 4, [1] * 4),
    "no labels": {"input_ids": [1, 2, 3, 4]},
    "none": None,
    "raising": odd.Raising(),
}


ODD_PEOPLE = {name: [each, TEXTS[3], each] for name, each in ODD_TEXTS.items()}


class HuggingFace(Entry):
    """`PrivateTrainer`."""

    name = "PrivateTrainer"
    needs = "transformers"
    draws = True
    plain = TEXTS
    odd = ODD_TEXTS

    def drawn(self) -> st.SearchStrategy[Any]:
        words = st.lists(st.integers(-1, 21) | st.just(-100), max_size=9)
        return st.builds(text, words, st.none() | words)

    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        pytest.importorskip("transformers", reason="needs the extra `huggingface`")
        from transformers import TrainingArguments

        from prudent.training.adapters.huggingface import PrivateTrainer

        model = Words()
        before = weights_of(model)
        with tempfile.TemporaryDirectory() as folder, leaving_out(absent):
            arguments = TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
                optim="sgd",
                learning_rate=1.0,
                lr_scheduler_type="constant",
                per_device_train_batch_size=COUNT,
                remove_unused_columns=False,
            )
            public = Items([text([5, 6, 7, 8])] * 2)
            PrivateTrainer(
                model,
                arguments,
                eval_dataset=public,
                plan=PLAN,
                key=Key.from_seed(0),
                delta=1e-3,
                **self.given(records),
            ).train()
        return (before - weights_of(model)) * COUNT

    def given(self, records: Sequence[Any]) -> dict[str, Any]:
        """What the trainer is given of the records."""
        return {"train_dataset": Texts(records)}

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        plant_shared_streams(patch)


class HuggingFaceOfPeople(HuggingFace):
    """The same with a privacy unit: each of the "records" is a person, with several texts."""

    name = "PrivateTrainer, people"
    slow = True
    telling = ("far",)
    plain = tuple([each] * (1 + place % 4) for place, each in enumerate(TEXTS))
    odd = ODD_PEOPLE

    def drawn(self) -> st.SearchStrategy[Any]:
        return st.lists(super().drawn(), min_size=1, max_size=4)

    def given(self, records: Sequence[Any]) -> dict[str, Any]:
        owned = [(one, person) for person, texts in enumerate(records) for one in texts]
        data, unit = zip(*owned, strict=True)
        return {"train_dataset": Texts(data), "unit": list(unit), "records_per_person": 3}


class Lightning(Training):
    """Lightning's Trainer on a private module."""

    needs = "lightning"

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        pytest.importorskip("lightning", reason="needs the extra `lightning`")
        from lightning.pytorch import LightningModule, Trainer

        from prudent.training.adapters.lightning import make_private

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = model

            def training_step(self, batch: Any, _: int) -> Tensor:
                inputs, targets = batch
                targets = torch.where((targets >= 0) & (targets < 3), targets, -100)
                return functional.cross_entropy(self.net(inputs), targets)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=1.0)

        data: Any = DataLoader(Items(records, augmented=self.augmented), batch_size=4)
        module = Module()
        module, loader = make_private(
            module, data, model=module.net, plan=PLAN, key=Key.from_seed(0), **self.options
        )
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's own advice
            Trainer(
                max_epochs=1,
                accelerator="cpu",
                default_root_dir=folder,
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                enable_checkpointing=False,
            ).fit(module, loader)


class LightningOfPeople(OfPeople, Lightning):
    """The same with a privacy unit."""


UPDATES = {
    "not a number": np.array([np.nan, 1.0]),
    "infinite": np.array([np.inf, 1.0]),
    "huge": np.array([1e308, 1e308]),
    "far": np.array([1e9, -1e9]),
}


class Federated(Entry):
    """The release of a round of federated learning, in which a record is a client."""

    name = "federated round"
    plain = tuple(np.array([2.0, index - 8.0]) for index in range(COUNT))
    telling = ("huge", "far")
    odd = UPDATES

    def drawn(self) -> st.SearchStrategy[Any]:
        return drawing.arrays(2)

    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        made = RoundRelease(CLIENTS, 2, expected_clients=COUNT, key=Key.from_seed(0))
        kept = [record for place, record in enumerate(records) if place != absent]
        return made([torch.from_numpy(record) for record in kept])[0] * COUNT

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        mean = RoundRelease._noisy_mean

        def by_answers(self: RoundRelease, updates: Any, decision: Any) -> Tensor:
            return mean(self, updates, decision) * self.expected_clients / (len(updates) - 20)

        patch.setattr(RoundRelease, "_noisy_mean", by_answers)


CLIENTS = Plan(sampling_rate=1.0, steps=1, aggregation=Sum(clip=1.0, noise_multiplier=SILENT))


class Flower(Federated):
    """The same through Flower's messages, in which a client may send anything."""

    name = "federated round, Flower"
    needs = "flwr"
    telling = ("single precision", "none")
    odd = Federated.odd | {
        "single precision": np.array([0.1, 1e30], dtype=np.float32),
        "half precision": np.array([0.1, 3.0], dtype=np.float16),
        "whole numbers": np.array([1, 2**60]),
        "longer": np.ones(3),
        "matrix": np.ones((1, 2)),
        "big-endian": np.array([1.0, 2.0], dtype=">f8"),
        "complex": np.array([1j, 2.0]),
        "none": None,
    }

    def drawn(self) -> st.SearchStrategy[Any]:
        found = drawing.tensors(2).filter(lambda x: isinstance(x, Tensor | np.ndarray))
        return found.filter(lambda x: x.dtype != torch.bfloat16).map(np.array)

    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        flower = pytest.importorskip("flwr.app", reason="needs the extra `federated`")
        from prudent.training.adapters.federated import PrivateStrategy
        from tests.training.adapters.federated.grid import LocalGrid, arrays

        def client(record: Any) -> Any:
            def answer(message: Any) -> Any:
                if record is None:
                    return []
                content = flower.RecordDict({"arrays": arrays(model=record)})
                return [flower.Message(content, reply_to=message)]

            return answer

        kept = {
            place: client(None if place == absent else record)
            for place, record in enumerate(records)
        }
        strategy = PrivateStrategy(CLIENTS, clients=COUNT, seed=0, patience=0)
        found = strategy.start(LocalGrid(kept), arrays(model=np.zeros(2)), num_rounds=1)
        return torch.from_numpy(found.arrays["model"].numpy()) * COUNT


class Classifier(Entry):
    """The counts of the certified classifier, on a list or an array of one memory order."""

    telling = ("black",)
    bound = 2**0.5  # a record is one in a cell and one in the total of its class

    def __init__(self, features: str, container: str, *, slow: bool = False) -> None:
        self.name, self.slow = f"certified classifier, {features}, {container}", slow
        self.features, self.container, self.containers = features, container, (container,)
        shape = (28, 28) if features == "letters" else (16,)
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (COUNT, *shape)).astype(np.uint8)
        self.plain = [(image, index % 3) for index, image in enumerate(images)]
        one = images[0]
        self.odd = {
            "black": (np.zeros(shape, np.uint8), 0),
            "white": (np.full(shape, 255, np.uint8), 0),
            "no class": (one, 9),
            "float label": (one, 1.0),
        }
        if container == "list":
            self.odd |= {
                "float image": (one / 255, 1),
                "not a number": (np.full(shape, np.nan), 1),
                "other shape": (np.zeros((3, 3), np.uint8), 1),
                "none": (None, 1),
                "label of all classes": (one, odd.EqualToAll()),
                "half label": (one, np.float16(1)),
                "text label": (one, "1"),
            }

    def drawn(self) -> st.SearchStrategy[Any]:
        shape = self.plain[0][0].shape
        if self.container == "list":
            return st.tuples(drawing.tensors(shape[0]), drawing.LABELS)
        images = st.integers(0, 2**32 - 1).map(
            lambda seed: np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
        )
        return st.tuples(images, st.integers(-(2**62), 2**62) | st.integers(-1, 3))

    def release(self, records: Sequence[Any], absent: int | None = None) -> Any:
        kept = [record for place, record in enumerate(records) if place != absent]
        images: Any = [image for image, _ in kept]
        labels: Any = [label for _, label in kept]
        if self.container != "list":
            order: Any = "F" if self.container == "columns" else "C"
            images, labels = np.array(images, order=order), np.array(labels)
        own = {"features": "letters"} if self.features == "letters" else {"landmarks": np.eye(16)}
        counts = CertifiedClassifier(classes=3, **own).count(images, labels)
        return torch.from_numpy(np.append(counts.cells, counts.totals)).double()

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        count = CertifiedClassifier.count

        def together(self: Any, *data: Any) -> Any:
            found = count(self, *data)
            return attrs.evolve(found, cells=found.cells * (1 + (len(data[1]) == COUNT)))

        patch.setattr(CertifiedClassifier, "count", together)


class SeveralProcesses(Training):
    """`fit` in two processes, as torchrun starts them."""

    def train(self, model: nn.Module, records: Sequence[Any]) -> None:
        context = multiprocessing.get_context("fork")
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fork beside other threads
            started = [
                context.Process(target=self.one, args=(rank, Path(folder), model, records))
                for rank in range(2)
            ]
            for process in started:
                process.start()
            for process in started:
                process.join(600)
            assert [process.exitcode for process in started] == [0, 0]
            model.load_state_dict(torch.load(Path(folder) / "model.pt"))

    def one(self, rank: int, folder: Path, model: nn.Module, records: Sequence[Any]) -> None:
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
        )
        data = Items(records, augmented=self.augmented)
        fit(PLAN, model, cross_entropy, data, execution=Execution(seed=0), lr=1.0)
        if rank == 0:
            torch.save(model.state_dict(), folder / "model.pt")
        distributed.destroy_process_group()


ENTRIES += [
    HuggingFace(),
    HuggingFaceOfPeople(),
    LightningOfPeople("Lightning, people", slow=True),
    Lightning("Lightning, augmentation", augmented=True),
    Lightning("Lightning", telling=("longer",)),
    Federated(),
    Flower(),
    Classifier("vectors:16", "list"),
    Classifier("vectors:16", "rows"),
    Classifier("vectors:16", "columns"),
    Classifier("letters", "list", slow=True),
    SeveralProcesses("fit, two processes", augmented=True, slow=True),
]


def installed(*, slow: bool = False) -> list[Entry]:
    """The entries, slow or not, of which everything is installed."""
    found = (each for each in ENTRIES if each.slow == slow)
    return [each for each in found if each.needs is None or find_spec(each.needs)]
