"""Small real tables that ship with the package, for first steps, examples and tests.

Their records are public. They are copied as they are, so that writing one needs no extra.
"""

import shutil
from pathlib import Path

import attrs

from prudent._files import replacing
from prudent._validate import ArgumentError


@attrs.frozen
class Sample:
    """A table that ships with the package.

    Attributes:
        name: Its name, and the default name of its file without the ending.
        about: What a record is, and what the columns hold.
        source: Where the records come from, and on what terms.
    """

    name: str
    about: str
    source: str

    @property
    def file(self) -> Path:
        """Where it lies in the package."""
        return Path(__file__).with_name(f"{self.name}.parquet")


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample(
            "salaries",
            "15,992 men of working age, one row each: salary (earned in 1978), salary_1975 and "
            "salary_1974, in dollars of 1982 and cut off at about 25,600; age, schooling (years), "
            "education (no degree, high school, college: below, at and above 12 years), married.",
            "Current Population Survey of the US Census Bureau, public domain: the comparison "
            "group of LaLonde (1986), as made public by Dehejia and Wahba (1999).",
        ),
    )
}
"""The tables by name."""


def write(name: str, to: Path | None = None, *, force: bool = False) -> Path:
    """Write a table that ships with the package to a Parquet file.

    Args:
        name: A name in `SAMPLES`.
        to: The file; by default `NAME.parquet` in the current folder.
        force: Whether to replace a file that is there.

    Returns:
        The file.

    Raises:
        ArgumentError: If there is no table of that name, or a file is there and `force` is false.
    """
    if name not in SAMPLES:
        raise ArgumentError("name", f"one of {', '.join(sorted(SAMPLES))}", got=name)
    sample = SAMPLES[name]
    path = Path(f"{name}.parquet") if to is None else to
    if path.exists() and not force:
        raise ArgumentError(
            "out",
            "a file that is not there yet",
            got=str(path),
            hint="Choose another name, or replace it with --force.",
        )
    with sample.file.open("rb") as shipped, replacing(path, "wb") as file:
        shutil.copyfileobj(shipped, file)
    return path
