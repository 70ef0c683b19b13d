# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.estimators.aggregation.aggregate import aggregate as aggregate
