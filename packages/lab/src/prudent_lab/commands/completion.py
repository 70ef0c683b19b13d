"""What the Tab key offers for the values of the lab's options.

The lists stand here, not where the names are defined, because a key press must not wait for the
import of a numerical library; a test compares them.
"""

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
DEVICES = ("cpu", "cuda")
