"""The paper's own bounds, as printed or corrected by the errata; no release is priced by them."""

_EXACT = "Use the exact accountant, prudent.PldAccountant, which has none."


class ConditionError(ValueError):
    """A bound was requested where its theorem does not hold, so it would not be a guarantee.

    Args:
        theorem: The theorem.
        condition: The condition that fails.
        given: What was given, and by how much it fails the condition.
        instead: What to do instead.
    """

    def __init__(self, theorem: str, condition: str, given: str, instead: str = _EXACT) -> None:
        super().__init__(
            f"{theorem} needs {condition}, got {given}. "
            f"Outside its conditions the formula is not a bound. {instead}"
        )
