"""What the Tab key offers for the values of options, beside the names of commands and flags.

Only fixed names are offered, and no file, ledger or database is opened for them: what Tab shows is
shown before anything is charged. So the columns of a table, its groups and the data sets of a
ledger are not offered. The lists stand here, not where the names are defined, because a key press
must not wait for the import of a numerical library; a test compares them.
"""

from collections.abc import Callable

DATASETS = ("mnist", "fashion-mnist", "emnist-letters", "emnist-az", "cifar10")
"""What a network can be trained on."""

CERTIFIABLE = (*DATASETS, "imdb", "census")
FEATURES = ("census", "glyphs", "letters", "minilm", "resnet18", "vectors:")
CORRUPTIONS = (
    *("none", "label:", "label-targeted:", "feature:", "class-mean:", "gradient-match:"),
    *("backdoor:", "gradient:", "sign-flip:", "colluding:", "inner-product:", "reversed:"),
    *("loud:", "little:", "mimic:"),
)
RECIPES = (
    *("scattering-linear", "scattering-glyphs", "glyphs-linear", "fashion-scattering"),
    *("random-images-1", "random-images-3", "random-images-8"),
)
METHODS = ("ptr", "trimmed", "dpsgd", "sgd")
TESTS = ("laplace:", "gaussian:", "discrete-laplace:", "discrete-gaussian:", "none")
SAMPLES = ("salaries",)
UNIT_RULES = ("mean", "median", "min", "max", "sum", "count")
TYPES = ("number", "integer", "decimal(", "date", "timestamp", "duration")
DEVICES = ("cpu", "cuda")


def among(*names: str) -> Callable[[str], list[str]]:
    """What typer asks on Tab: the names that begin as what is typed."""

    def offered(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return offered
