"""A synthetic table from one private release, without a domain or bounds.

The public names are listed in `__init__.pyi`. Each is imported when it is first used.
"""

from prudent import _lazy

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
