"""Display names and number formats of the report."""

from prudent_lab.corruption import written
from prudent_lab.named_datasets import NAMED_DATASETS
from prudent_lab.paper.jobs import settings
from prudent_lab.paper.results import Estimate

NOT_MET = "–"
SMALL_NOTE = (
    "Small size: the runs end after a few steps, so their numbers compare with each other alone, "
    "not with the paper's, and the ε in a row is that of the whole run."
)
_PAPERS_DATA = {"mnist": "mnist", "emnist": "emnist-letters", "cifar10": "cifar10"}


def _named(of: str, name: str) -> str:
    return str(settings()["names"][of].get(name, name))


def method(column: str) -> str:
    """The display name of a column."""
    return _named("methods", column)


def data_behind(dataset: str) -> str:
    """The name of the data set that is actually used for training."""
    return str(settings()["datasets"].get(dataset, {}).get("data", dataset))


def substitute_note(dataset: str) -> str:
    """A note on the data set that substitutes for the paper's; empty if there is no substitute."""
    data = data_behind(dataset)
    is_own = data == _PAPERS_DATA.get(dataset, data)
    return "" if is_own else f"{data}: {NAMED_DATASETS[data].note}"


def dataset(name: str) -> str:
    """The display name of a data set; a substitute is named first by its own name."""
    title = _named("datasets", name)
    return f"{data_behind(name)}, a substitute for {title}" if substitute_note(name) else title


def short(name: str) -> str:
    """The display name of a data set without the remark on a substitute."""
    return data_behind(name) if substitute_note(name) else dataset(name)


def kind(name: str) -> str:
    """The display name of a kind of corruption."""
    return _named("corruptions", name)


def corruption(text: str) -> str:
    """The display name of a corruption with its ratio."""
    parts = written(text)
    ratio = "" if parts.ratio is None else f" {parts.ratio:.0%}"
    return kind(parts.kind) + ratio + (f" ({parts.settings})" if parts.settings else "")


def estimate(found: Estimate) -> str:
    """Mean and deviation over seeds, with as many digits as the paper prints."""
    return f"{found.mean:.2f}" + ("" if found.deviation is None else f" ± {found.deviation:.2f}")


def difference(value: float) -> str:
    """A signed difference; rounding never removes the sign."""
    digits = 2
    while value != 0 and digits < 9 and round(value, digits) == 0:
        digits += 1
    return f"{value:+.{digits}f}".replace("-", "−")
