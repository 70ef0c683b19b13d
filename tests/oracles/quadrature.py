"""Divergences of labelled Gaussian pairs from their defining integrals, in many digits.

A pair is a list of components (absent mass, label loss, σ): with the record absent the component
has that mass and x is N(0, 1); with it present the mass is e^loss times as much and x is N(1/σ, 1).
P is the law without the record, M = (1-q) P + q (the law with it).
"""

from functools import cache

import mpmath
import numpy as np

DIGITS = 34


def laplace_components(scale, sigma, nodes):
    """The noisy margin s ~ Laplace(b) at 0 or 1, as components: two flat ends and 0 < s < 1."""
    with mpmath.workdps(DIGITS):
        b = mpmath.mpf(scale)
        ends = [(mpmath.mpf(1) / 2, -1 / b, sigma), (mpmath.exp(-1 / b) / 2, 1 / b, sigma)]
        return ends + [
            (weight * mpmath.exp(-s / b) / (2 * b), (2 * s - 1) / b, sigma)
            for s, weight in unit_nodes(nodes)
        ]


@cache
def unit_nodes(nodes):
    """Gauss-Legendre nodes and weights on [0, 1], in the digits of `laplace_components`."""
    roots = np.polynomial.legendre.leggauss(nodes)[0]
    found = []
    for guess in roots:
        x = mpmath.mpf(float(guess))
        for _ in range(3):  # Newton: the double is good to 1e-15, two rounds double its digits
            before, value = mpmath.mpf(1), x
            for k in range(2, nodes + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = nodes * (x * value - before) / (x * x - 1)
            x -= value / slope
        found.append(((1 + x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return found


def renyi(components, order, rate, *, adding=False):
    """D_α(M || P), or D_α(P || M) when `adding`: the trapezoidal rule over x, all in `DIGITS`."""
    with mpmath.workdps(DIGITS):
        q, alpha = mpmath.mpf(rate), mpmath.mpf(order)
        power = 1 - alpha if adding else alpha
        total = mpmath.mpf(0)
        for sigma in {sigma for _, _, sigma in components}:
            s = mpmath.mpf(sigma)
            inner = [
                (mpmath.mpf(a), q * mpmath.exp(loss)) for a, loss, s in components if s == sigma
            ]
            step = min(mpmath.mpf(1) / 2, s / 4)
            low = min(0, power) / s - 11
            high = max(2, power) / s + 11
            count = int((high - low) / step) + 1
            for i in range(count):
                x = low + i * step
                ratio = mpmath.exp(x / s - 1 / (2 * s * s))
                weight = mpmath.exp(-x * x / 2)
                total += (
                    weight
                    * step
                    * mpmath.fsum(a * (1 - q + grown * ratio) ** power for a, grown in inner)
                )
        moment = total / mpmath.sqrt(2 * mpmath.pi)
        return mpmath.log(moment) / (alpha - 1)


def hockey_stick(components, epsilon, rate=1, *, adding=False):
    """sup over events of M - e^ε P, or of P - e^ε M when `adding`, component by component."""
    with mpmath.workdps(DIGITS):
        gain, q = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(rate)
        return mpmath.fsum(
            mass * _gaussian_stick(loss, mpmath.mpf(sigma), gain, q, adding)
            for mass, loss, sigma in components
        )


def _gaussian_stick(loss, sigma, gain, q, adding):
    """∫ φ(x) [1-q + q e^(loss + x/σ - 1/2σ²) - g]₊ dx, or with the two laws exchanged."""
    with_record = q * mpmath.exp(loss)
    mu = 1 / sigma
    constant = 1 - gain * (1 - q) if adding else gain - 1 + q
    factor = gain * with_record if adding else with_record
    if constant <= 0:  # no cut: everything counts, or nothing does
        return mpmath.mpf(0) if adding else with_record - constant
    cut = mpmath.log(constant / factor) / mu + mu / 2
    if adding:
        return constant * mpmath.ncdf(cut) - factor * mpmath.ncdf(cut - mu)
    return factor * mpmath.ncdf(mu - cut) - constant * mpmath.ncdf(-cut)
