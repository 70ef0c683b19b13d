# The public names, listed once: type checkers read this file, and so does prudent._lazy.

from prudent.synth.making import MeasuredMarginal as MeasuredMarginal
from prudent.synth.making import Synthetic as Synthetic
from prudent.synth.making import synthesize as synthesize
