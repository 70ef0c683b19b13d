"""Display names and number formats of the report."""

from prudent_lab.corruption import written
from prudent_lab.named_datasets import NAMED_DATASETS
from prudent_lab.paper.jobs import settings
from prudent_lab.paper.results import Estimate

NOT_RUN = "not run"
NOT_MET = "–"
SMALL_NOTE = (
    "Small size: the runs end after a few steps, so their numbers compare with each other alone, "
    "not with the paper's, and the ε in a row is that of the whole run."
)
NOT_REACHED = "no step within ε"

_ATTACKERS = {"records": "Bad records", "gradients": "Bad gradients"}
_PAPERS_DATA = {"mnist": "mnist", "emnist": "emnist-letters", "cifar10": "cifar10"}


def _named(kind: str, name: str) -> str:
    return str(settings()["names"][kind].get(name, name))


def method(column: str) -> str:
    """The display name of a column."""
    return _named("methods", column)


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
    title = _named("datasets", name)
    if substitute_note(name) is not None:
        return f"{data_behind(name)}, a substitute for {title}"
    return title


def short(name: str) -> str:
    """The display name of a data set without the remark on a substitute."""
    return data_behind(name) if substitute_note(name) is not None else dataset(name)


def kind(name: str) -> str:
    """The display name of a kind of corruption."""
    return _named("corruptions", name)


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
