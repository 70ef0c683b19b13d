"""One record more or less, at every entry: a difference above the bound is a finding.

The entries and the odd records are those of `tests/differential`. Prudent is imported only where
inputs are drawn, so that a fuzzer can instrument the import.
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


DIFFERENCES = (
    Differences("differences", slow=False, weight=4.0),
    Differences("differences, slow entries", slow=True, weight=0.02),
)
