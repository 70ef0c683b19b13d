# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.federated.release import RoundOutcome as RoundOutcome
from prudent.federated.release import RoundRelease as RoundRelease
from prudent.federated.strategy import PrivateStrategy as PrivateStrategy
