# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.synth.making import synthesize as synthesize
from prudent.synth.result import MeasuredMarginal as MeasuredMarginal
from prudent.synth.result import Synthetic as Synthetic
