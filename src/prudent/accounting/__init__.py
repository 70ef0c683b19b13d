"""Privacy accounting: events, accountants, calibration, and event serialisation.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that an
event needs no accountant.
"""

from prudent import _lazy

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
