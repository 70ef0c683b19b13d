# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.training.adapters.federated.release import RoundOutcome as RoundOutcome
from prudent.training.adapters.federated.release import RoundRelease as RoundRelease
from prudent.training.adapters.federated.strategy import PrivateStrategy as PrivateStrategy
