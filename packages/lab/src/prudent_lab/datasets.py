"""The data sets of the experiments, from local files.

    train = load("mnist").train_features          # float32, (60000, 1, 28, 28), in [0, 1]

| name | what | train + test | classes |
| --- | --- | ---: | ---: |
| `mnist` | handwritten digits, 1 × 28 × 28; shipped with a source checkout | 60,000 + 10,000 | 10 |
| `fashion-mnist` | articles of clothing, 1 × 28 × 28 | 60,000 + 10,000 | 10 |
| `emnist-letters` | handwritten letters, 1 × 28 × 28, upright | 124,800 + 20,800 | 26 |
| `emnist-az` | a substitute for it, from other parts of EMNIST | 117,248 + 10,400 | 26 |
| `cifar10` | colour photographs, 3 × 32 × 32 | 50,000 + 10,000 | 10 |
| `npz:PATH` | your own arrays in a numpy archive | | |

Two more have records for the maps of `prudent certify`; `read_arrays` reads them:

| name | what | train + test | classes | file |
| --- | --- | ---: | ---: | --- |
| `imdb` | reviews, 2,048 bytes of UTF-8 | 25,000 + 25,000 | 2 | `reviews.json` |
| `census` | 40 numbers or checksums of categories | 199,523 + 99,762 | 2 | `census-income.data` |

Files are looked for in `data_dir`, `$PRUDENT_DATA/NAME`, the checkout's `data/NAME`,
`/usr/share/datasets/NAME` and `~/.cache/prudent/NAME` (or under `$XDG_CACHE_HOME`), in this order.
Nothing is downloaded: an error says what to put where.

Pixels are divided by 255, so they lie in [0, 1]; this does not depend on the data. Features that
are not bytes are not scaled: scaling by a minimum, mean or deviation of the training records would
be an additional release, which the guarantee of the training would not cover.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prudent import _validate
from prudent._formats import read_npz
from prudent._validate import ArgumentError
from prudent.records.containers import digest
from prudent.records.people import PerUnit, Unit
from prudent_lab.corruption import DataCorruption
from prudent_lab.data_files import is_file, search_folders
from prudent_lab.named_datasets import NAMED_DATASETS, Arrays

Array: TypeAlias = npt.NDArray[np.generic]
_SPLIT = 0  # the seed of the public split into training and held-out records


@attrs.frozen(eq=False)
class Dataset:
    """Features and labels of a training and a test part."""

    name: str  # as given to `load`
    train_features: Tensor  # float32, one row per record
    train_labels: Tensor  # int64, from 0 to classes − 1
    test_features: Tensor  # like `train_features`
    test_labels: Tensor  # like `train_labels`
    classes: int  # the number of classes
    note: str  # information about the data needed to interpret a result

    def __attrs_post_init__(self) -> None:
        for part, features, labels in (
            ("train", self.train_features, self.train_labels),
            ("test", self.test_features, self.test_labels),
        ):
            if features.shape[:1] != labels.shape:
                raise ValueError(
                    f"Expected one label for each record of {self.name} ({part}), got features of "
                    f"shape {tuple(features.shape)} and labels of shape {tuple(labels.shape)}."
                )

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.train_labels)} + {len(self.test_labels)} records of "
            f"shape {tuple(self.train_features.shape[1:])}, {self.classes} classes)"
        )

    @property
    def arrays(self) -> tuple[Any, Any]:
        """The features and labels of the training and of the test part, as arrays."""
        train = self.train_features.numpy(), self.train_labels.numpy()
        return train, (self.test_features.numpy(), self.test_labels.numpy())

    def corrupted(self, corruption: DataCorruption, seed: int) -> "Dataset":
        """The data set with some of the training records corrupted; the test part stays clean."""
        features, labels = corruption.apply(
            self.train_features, self.train_labels, classes=self.classes, seed=seed
        )
        return attrs.evolve(self, train_features=features, train_labels=labels)

    def mapped(
        self,
        features: Callable[[Tensor], Tensor],
        labels: Callable[[Tensor], Tensor] = lambda labels: labels,
    ) -> "Dataset":
        """The data set with functions applied to the features and the labels of both parts."""
        return attrs.evolve(
            self,
            train_features=features(self.train_features),
            train_labels=labels(self.train_labels),
            test_features=features(self.test_features),
            test_labels=labels(self.test_labels),
        )

    def to(self, device: torch.device | str) -> "Dataset":
        """The data set on another device."""
        return self.mapped(lambda values: values.to(device), lambda labels: labels.to(device))


NAMES = (*(name for name, source in NAMED_DATASETS.items() if source.trainable), "npz:PATH")
"""The names that `load` accepts."""


def load(name: str, data_dir: Path | str | None = None) -> Dataset:
    """Read a data set from files on this machine.

    Args:
        name: one of `NAMES`. An `npz:PATH` holds train_features, train_labels, test_features and
            test_labels (or x_train, y_train, x_test, y_test), and a number `classes`: deriving it
            from the largest label of the records would reveal that label.
        data_dir: a folder to look in before all others.
    """
    _validate.instance(str, f"one of {', '.join(NAMES)}", name=name)
    if name.startswith("npz:"):
        note = f"From the archive {_archive(name).name}."
        return _dataset(name, *archive_arrays(name), archive_classes(name), note)
    source = NAMED_DATASETS.get(name)
    if source is None or not source.trainable:
        raise ArgumentError("name", f"one of {', '.join(NAMES)}", got=name)
    train, test = read_arrays(name, data_dir)
    return _dataset(name, train, test, source.classes, source.note)


def read_arrays(name: str, data_dir: Path | str | None = None) -> tuple[Arrays, Arrays]:
    """The records and labels of both parts of a named data set, as stored; see `load`."""
    if not isinstance(name, str) or name not in NAMED_DATASETS:
        raise ArgumentError("name", f"one of {', '.join(NAMED_DATASETS)}", got=name)
    source = NAMED_DATASETS[name]
    folders = list(search_folders(name, data_dir))
    if (found := source.stored(folders)) is not None:
        return found
    places = ", ".join(dict.fromkeys(map(str, folders)))
    origin = f"They are at {source.origin}" if source.origin else "No public place offers them."
    forms = " or ".join(", ".join(form.train + form.test) for form in source.forms)
    raise FileNotFoundError(
        f"Expected the files of {name} on this machine. Put {forms} into one of {places}, or name "
        f"their folder by data_dir or PRUDENT_DATA. {origin}"
    )


def _archive(name: str) -> Path:
    """The path of an archive that npz:PATH names."""
    path = _validate.path(name=name.removeprefix("npz:"))
    if not is_file(path):
        raise FileNotFoundError(f"Expected npz:PATH to name a file that exists, got {name!r}.")
    return path


def archive_arrays(name: str) -> tuple[Arrays, Arrays]:
    """The training and the test records of an archive npz:PATH, as they are stored."""
    path = _archive(name)
    spellings = (
        ("train_features", "train_labels", "test_features", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
    )
    found = read_npz(path, "an .npz archive", *spellings[0], *spellings[1])
    keys = next((keys for keys in spellings if found.keys() >= set(keys)), None)
    if keys is None:
        got = ", ".join(found) or "none of them"
        raise ValueError(f"Expected {path} to hold {', '.join(spellings[0])}, got {got}.")
    features, labels, test_features, test_labels = (found[key] for key in keys)
    for part in (labels, test_labels):
        if not np.issubdtype(part.dtype, np.integer):
            raise ValueError(f"Expected labels in {path} to be integers, got {part.dtype}.")
    for records in (features, test_features):
        if records.dtype.kind not in "biuf":
            raise ValueError(f"Expected features in {path} to be numbers, got {records.dtype}.")
    return (features, labels.ravel()), (test_features, test_labels.ravel())


def units(name: str, key: str) -> Array:
    """The array of an archive npz:PATH that says who each training record belongs to."""
    if not name.startswith("npz:"):
        raise ArgumentError("unit", f"None with {name}, whose records have no owners", got=key)
    path = _archive(name)
    found = read_npz(path, "an .npz archive", key)
    if key not in found:
        raise ArgumentError("unit", f"the name of an array in {path}", got=key)
    return found[key]


def split_of(count: int, held_out: float) -> tuple[Tensor, Tensor]:
    """The positions of those who are trained on and of those held out, by a public draw."""
    few = round(held_out * count)
    if not 0 < few < count:
        raise ArgumentError("held_out", f"at least one of {count}, and not all", got=held_out)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SPLIT))
    return order[few:], order[:few]


def held_apart(
    owners: Array | None, data: Dataset, held_out: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The records of those who are trained on, of those held out, and one place of each of these.

    It is the place of the record whose content has the least digest, a function of hers alone.
    Without owners, each record stands for itself.
    """
    if owners is None:
        some, rest = split_of(len(data.train_labels), held_out)
        return some, rest, torch.arange(len(rest))
    people = Unit(owners, 1, PerUnit.MEAN).people(None, len(data.train_labels)).members
    parts = [[people[number] for number in part] for part in split_of(len(people), held_out)]
    some, rest = (torch.tensor([n for each in part for n in each]) for part in parts)
    chosen, start = [], 0
    for each in parts[1]:
        contents = [digest([data.train_features[n], data.train_labels[n]]) for n in each]
        chosen.append(start + contents.index(min(contents)))
        start += len(each)
    return some, rest, torch.tensor(chosen)


def archive_classes(name: str) -> int:
    """The number of classes of an archive, which is public and stands in it beside the records."""
    if not name.startswith("npz:"):
        raise ArgumentError("name", f"one of {', '.join((*NAMED_DATASETS, 'npz:PATH'))}", got=name)
    path = _archive(name)
    if (stored := read_npz(path, "an .npz archive", "classes").get("classes")) is None:
        raise ValueError(
            f"Expected {path} to hold classes, how many there are, known without a look at the "
            f"labels: the model is made for it. Save it beside the arrays, as a number."
        )
    if stored.shape != () or stored.dtype.kind not in "iuf":
        raise ValueError(f"Expected classes in {path} to be a number, got an array.")
    return _validate.count(1, classes=stored.item())


def _dataset(name: str, train: Arrays, test: Arrays, classes: int, note: str) -> Dataset:
    # Training labels are not checked: one record must not decide whether training happens at all. A
    # training record whose label is no class counts as a zero gradient.
    if not 0 <= test[1].min(initial=0) <= test[1].max(initial=0) < classes:
        raise ValueError(f"Expected every label of {name} (test) in 0 to {classes - 1}.")

    def tensors(records: Array, labels: Array) -> tuple[Tensor, Tensor]:
        with np.errstate(over="ignore"):  # a warning would tell of a record with such a number
            features = torch.from_numpy(records.astype(np.float32, order="C"))
        scaled = features.div_(255) if records.dtype == np.uint8 else features
        return scaled, torch.from_numpy(labels.astype(np.int64))

    return Dataset(name, *tensors(*train), *tensors(*test), classes, note)
