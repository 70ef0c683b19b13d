"""The error of a theorem asked outside its conditions."""

_EXACT = "Use the exact accountant, prudent.PldAccountant, which has none."


class ConditionError(ValueError):
    """A bound was asked where its theorem does not hold, so its formula would be no guarantee.

    Args:
        theorem: Whose condition it is.
        condition: What is needed.
        given: What was given, and by how much it misses.
        instead: What to do.
    """

    def __init__(self, theorem: str, condition: str, given: str, instead: str = _EXACT) -> None:
        super().__init__(
            f"{theorem} needs {condition}, got {given}. "
            f"Outside its conditions the formula is not a bound. {instead}"
        )
