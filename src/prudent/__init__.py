"""Differentially private releases that test before they trust.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that
`import prudent` is light.
"""

from prudent import _lazy

__version__ = "0.1.0"

_lazy.defer("dp_accounting")  # its accountants take a second to import, and few commands need them

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
