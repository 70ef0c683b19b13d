"""Private statistics of a table: chosen by rank, released with noise, or tested before trusted.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that
keeping a budget needs neither database packages nor noise samplers.
"""

from prudent import _lazy

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
