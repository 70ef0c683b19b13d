"""Display names and number formats of the report."""

from prudent.lab.named_datasets import NAMED_DATASETS
from prudent.lab.paper.corruptions import written
from prudent.lab.paper.results import Estimate
from prudent.lab.paper.runs.jobs import settings

NOT_RUN = "not run"
NOT_MET = "–"
SMALL_NOTE = (
    "Small size: the runs end after a few steps, so their numbers compare with each other alone, "
    "not with the paper's, and the ε in a row is that of the whole run."
)
NOT_REACHED = "no step within ε"

_METHODS = {
    "trimmed": "TSGD+Gaussian",
    "dpsgd": "DP-SGD",
    "ptr": "TSGD+PTR",
    "ours": "TSGD+PTR, tuned",
    "ours-dpsgd": "DP-SGD, tuned",
    "certified-letters": "certified classifier, public letters",
    "certified-glyphs": "certified classifier, no public data",
}
_DATASETS = {
    "mnist": "MNIST",
    "emnist": "EMNIST Letters",
    "cifar10": "CIFAR10",
    "cifar10-vgg16": "CIFAR10, last layer on VGG16 (substitute for VGG11)",
    "cifar10-opacus": "CIFAR10, network of Opacus",
    "cifar10-tanh": "CIFAR10, eight convolutions with tanh",
    "cifar10-momentum": "CIFAR10, tutorial network, momentum 0.9",
    "cifar10-opacus-momentum": "CIFAR10, network of Opacus, momentum 0.9",
    "cifar10-tanh-momentum": "CIFAR10, eight convolutions with tanh, momentum 0.9",
    "cifar10-resnet18": "CIFAR10, last layer on ResNet18",
}
_CORRUPTIONS = {
    "none": "clean",
    "label": "random labels",
    "label-targeted": "targeted labels",
    "feature": "feature noise",
    "class-mean": "class means",
    "gradient-match": "gradient matching",
    "backdoor": "backdoor",
    "aimed": "aimed at the counts",
    "gradient": "gradient noise",
    "sign-flip": "sign flip",
    "colluding": "colluding",
    "inner-product": "inner product",
    "reversed": "reversed mean",
    "loud": "reversed mean, loud",
    "little": "a little is enough",
    "mimic": "mimic",
}
_ATTACKERS = {"records": "Bad records", "gradients": "Bad gradients"}
_PAPERS_DATA = {"mnist": "mnist", "emnist": "emnist-letters", "cifar10": "cifar10"}


def method(column: str) -> str:
    """The display name of a column."""
    return _METHODS.get(column, column)


def data_behind(dataset: str) -> str:
    """The name of the data set that is actually used for training."""
    return str(settings()["datasets"].get(dataset, {}).get("data", dataset))


def substitute_note(dataset: str) -> str | None:
    """A note on the data set that substitutes for the paper's; None if there is no substitute."""
    data = data_behind(dataset)
    if dataset not in _PAPERS_DATA or data == _PAPERS_DATA[dataset]:
        return None
    return f"{data}: {NAMED_DATASETS[data].note}"


def dataset(name: str) -> str:
    """The display name of a data set; a substitute is named first by its own name."""
    title = _DATASETS.get(name, name)
    if substitute_note(name) is not None:
        return f"{data_behind(name)}, a substitute for {title}"
    return title


def short(name: str) -> str:
    """The display name of a data set without the remark on a substitute."""
    return data_behind(name) if substitute_note(name) is not None else dataset(name)


def kind(name: str) -> str:
    """The display name of a kind of corruption."""
    return _CORRUPTIONS.get(name, name)


def attacker(name: str) -> str:
    """The display name of what an attacker chooses."""
    return _ATTACKERS[name]


def corruption(text: str) -> str:
    """The display name of a corruption with its ratio."""
    parts = written(text)
    ratio = "" if parts.ratio is None else f" {parts.ratio:.0%}"
    settings = f" ({parts.settings})" if parts.settings else ""
    return f"{kind(parts.kind)}{ratio}{settings}"


def accuracy(value: float) -> str:
    """An accuracy in percent, with as many digits as the paper prints."""
    return f"{value:.2f}"


def estimate(cell: Estimate | None) -> str:
    """Mean and deviation over seeds, as text."""
    if cell is None:
        return NOT_RUN
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.2f}"
    return accuracy(cell.mean) + spread


def difference(value: float | None) -> str:
    """A signed difference as text; rounding never removes the sign."""
    if value is None:
        return ""
    digits = 2
    while value != 0 and digits < 9 and round(value, digits) == 0:
        digits += 1
    return f"{value:+.{digits}f}".replace("-", "−")


def seeds(cell: Estimate | None) -> str:
    """The number of seeds of an estimate, as text."""
    if cell is None:
        return ""
    return "1 seed" if cell.seeds == 1 else f"{cell.seeds} seeds"
