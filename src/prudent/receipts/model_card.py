"""A model card in the format of the Hugging Face Hub: what a private model guarantees, in words."""

import math
from collections.abc import Sequence
from pathlib import Path

import attrs
import dp_accounting as dp

from prudent import _files
from prudent._rounding import exact, rounded_up
from prudent.accounting.relations import Relation
from prudent.accounting.serialisation import describe

FILE = "README.md"


@attrs.frozen(kw_only=True)
class ModelCard:
    """What a model card says about the training of a model; all of it is public.

    Attributes:
        name: What kind of model it is.
        event: What was released of the training records.
        epsilon: ε of all of it, an upper bound.
        delta: δ.
        relation: The neighbouring relation of ε.
        protected: What ε protects: every "record", or every "person".
        steps: Number of steps.
        released: What was released besides the parameters, a phrase each.
        predictable: Whether the noise was seeded.
        base_model: The model on the Hub that training began with, if it did.
        library: The library that loads the model, as the Hub names it.
    """

    name: str
    event: dp.DpEvent
    epsilon: float
    delta: float
    relation: Relation
    protected: str
    steps: int
    released: Sequence[str] = ()
    predictable: bool = False
    base_model: str | None = None
    library: str = "pytorch"

    def __str__(self) -> str:
        based = [] if self.base_model is None else [f"base_model: {_quoted(self.base_model)}"]
        claim = f"ε = {rounded_up(self.epsilon)} at δ = {exact(self.delta)}"
        if math.isinf(self.epsilon):
            claim = f"no finite ε at δ = {exact(self.delta)}: nothing is guaranteed"
        seeded = (
            ["", "**The noise was seeded: against whoever knows the seed nothing is guaranteed.**"]
            if self.predictable
            else []
        )
        return "\n".join(
            [
                "---",
                f"library_name: {_quoted(self.library)}",
                *based,
                "tags:",
                "- differential-privacy",
                "- prudent",
                "---",
                "",
                f"# {self.name}",
                "",
                "## Privacy of the training data",
                "",
                f"This model was trained with differential privacy: **{claim}** (upper bound), for "
                f"{self.relation.sentence(self.protected)}.",
                *seeded,
                "",
                "| | |",
                "| --- | --- |",
                f"| who is protected | every {self.protected} in the training data |",
                f"| ε | {rounded_up(self.epsilon)} |",
                f"| δ | {exact(self.delta)} |",
                f"| relation | {self.relation.sentence(self.protected)} |",
                f"| steps | {self.steps:,} |",
                "",
                "### What was released",
                "",
                "- the parameters, after every step",
                *(f"- {each}" for each in self.released),
                "",
                "The mechanism, as it was priced:",
                "",
                "```text",
                describe(self.event),
                "```",
                "",
                "`receipt.json`, beside this card, holds the claim, the plan and a digest of the "
                "parameters: `prudent verify receipt.json` proves its ε again.",
                "",
                "### What is not protected",
                "",
                "- What is true of the population: a model may tell much about a person by what it "
                "learned from others.",
                "- Data that the model had seen before this training.",
                "- Records on which the model was evaluated, and choices made by looking at other "
                "runs on the same records, unless they were paid for as well.",
                "- The number of records, where the relation says that it is public, and anything "
                "that was published besides this model.",
                "",
                "## Data",
                "",
                "Whoever publishes the model describes here the training data, who may use the "
                "model, and for what.",
                "",
            ]
        )

    def write(self, folder: Path) -> None:
        """Write the card into a folder, as the Hub expects it."""
        with _files.replacing(folder / FILE) as file:
            file.write(str(self))


def _quoted(text: str) -> str:
    """A scalar of YAML, whatever characters it has."""
    kept = "".join(each if each.isprintable() else " " for each in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'
