"""Private statistics of a column.

    median("salaries.parquet", "salary", epsilon=0.3, ledger=ledger)

Each call calibrates a mechanism to (ε, δ), checks that the column exists, charges the ledger, and
only then reads the data. The result, `Released` or `Refused`, may be published.

The public names are listed in `__init__.pyi`. Each is imported when it is first used.
"""

from prudent import _lazy

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
