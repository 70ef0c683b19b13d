"""One record more or less, at every entry: a difference above the bound is a finding.

Entries of training are those of `tests/differential`, releases those of `neighbours`. Prudent is
imported only where inputs are drawn.
"""

import attrs
import hypothesis.strategies as st

from tests.fuzz.judging import FindingError, judge


@attrs.frozen
class Differences:
    """Cases of `tests/differential`: entry, container, odd record, place, neighbours.

    Attributes:
        name: Which entries.
        slow: Whether those that take long.
        weight: Relative number of inputs.
    """

    name: str
    slow: bool
    weight: float

    def strategy(self) -> st.SearchStrategy[object]:
        """Cases of all entries that are installed."""
        from tests.differential import drawing, frameworks

        return drawing.cases(frameworks.installed(slow=self.slow))

    def judge(self, case: object) -> BaseException | None:
        """Release with and without the record; see `judging`."""
        return judge(self.name, case, lambda: self.run(case))

    def run(self, case: object) -> None:
        """Raise an error if the record moves what is released by more than its bound.

        One record must not make an entry refuse either: what is refused is the container, with
        ordinary records as well.
        """
        from tests.differential.drawing import Case

        assert isinstance(case, Case)
        try:
            problem = case.problem()
        except Exception as error:
            case.entry.release(list(case.entry.plain))
            raise AssertionError("refused because of a record") from error
        if problem is not None:
            raise FindingError(self.name, repr(case), problem)


@attrs.frozen
class Neighbours:
    """Cases of `neighbours`, each by the number that seeds it."""

    name: str
    weight: float

    def strategy(self) -> st.SearchStrategy[int]:
        """Numbers of cases."""
        return st.integers(0, 2**60)

    def judge(self, seed: int) -> BaseException | None:
        """Release from both of two neighbours; see `judging`."""
        return judge(self.name, seed, lambda: self.run(seed))

    def run(self, seed: int) -> None:
        """Raise an error if the release tells the neighbours apart."""
        from tests.fuzz import neighbours

        of_models = self.name == "neighbours, models"
        case, problem = neighbours.checked(
            neighbours.draw_model if of_models else neighbours.draw, seed
        )
        if problem is not None:
            raise FindingError(self.name, str(case), problem)


DIFFERENCES = (
    Differences("differences", slow=False, weight=4.0),
    Differences("differences, slow entries", slow=True, weight=0.02),
    Neighbours("neighbours", weight=20.0),
    Neighbours("neighbours, models", weight=4.0),
)
