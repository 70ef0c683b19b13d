"""Rényi moments of dominating pairs, Poisson-sampled or not, at every real order above 1.

With M the law with the record sampled in at rate q and P the law without it, both directions are
one integral, E_P[(M/P)^t]: t = α when removing a record, t = 1 - α when adding one. Removing has a
closed form at whole orders (Errata 2.2); everything else is a sum of smooth one-dimensional
integrals, where the trapezoidal rule converges faster than any power of its step.
"""

import math

import numpy as np
from scipy import special

from prudent.accounting.mechanisms import laplace_rdp
from prudent.accounting.pairs import LaplacePair, MixturePair, Pair
from prudent.accounting.tables import Array

_TAIL_DISTANCE = 9.5  # in standard deviations
_MOST_NODES = 1 << 21  # of one integral, all components together


def renyi_divergence(pair: Pair, orders: Array, rate: float, *, adding: bool = False) -> Array:
    """D_α of the sampled pair at each order: D(M || P), or D(P || M) when `adding`."""
    logs = np.full(orders.shape, np.inf)
    if pair.infinite_mass > 0:
        return logs
    closed = np.zeros(orders.shape, bool) if adding else orders == np.floor(orders)
    if np.any(closed):
        powers = np.arange(2, int(orders[closed].max()) + 1, dtype=np.float64)
        logs[closed] = log_sampled_moments(log_base_moments(pair, powers), orders[closed], rate)
    # Orders within a factor of two share their nodes.
    octave = np.where(closed, -1, np.ceil(np.log2(orders)))
    for group in np.unique(octave[~closed]):
        here = octave == group
        by_quadrature = _log_moments(pair, 1 - orders[here] if adding else orders[here], rate)
        if by_quadrature is not None:
            logs[here] = by_quadrature
        elif not adding:
            powers = np.arange(2, math.ceil(orders[here].max()) + 1, dtype=np.float64)
            base = log_base_moments(pair, powers)
            logs[here] = [interpolated(base, float(order), rate) for order in orders[here]]
    return np.asarray(np.maximum(0.0, logs) / (orders - 1))


def log_base_moments(pair: Pair, powers: Array) -> Array:
    """Logarithm of E_absent[(present/absent)^k] at whole powers k >= 2, in closed form."""
    if isinstance(pair, LaplacePair):
        test = (powers - 1) * laplace_rdp(powers, pair.scale)
        return test + 0.5 * powers * (powers - 1) / pair.sigma**2
    mixture = _as_mixture(pair, 0)
    used = mixture.present > 0
    losses = mixture.losses[used]
    exponents = np.outer(powers, losses) + np.outer(
        0.5 * powers * (powers - 1), mixture.sigma[used] ** -2.0
    )
    # The masses without the record need not sum to one over the components used; what is missing
    # has (present/absent)^k = 0 and so adds nothing.
    unused = float(np.sum(mixture.absent[~used]))
    direct = np.expm1(np.minimum(exponents, 1.0)) @ mixture.absent[used] - unused
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log1p(direct)
    far = special.logsumexp(exponents + np.log(mixture.absent[used]), axis=1)
    return np.where(np.max(exponents, axis=1) < 1, near, far)


def log_sampled_moments(log_base: Array, orders: Array, rate: float) -> Array:
    """Logarithm of E_P[(M/P)^a] at whole orders a, from log_base[k - 2] before sampling.

    E = 1 + Σ_k C(a, k) (1-q)^(a-k) q^k (m_k - 1), k = 2..a (Errata 2.2).
    """
    if rate == 1:
        return np.asarray(log_base[orders.astype(int) - 2])
    powers = np.arange(2, len(log_base) + 2, dtype=np.float64)
    with np.errstate(divide="ignore"):
        excess = np.where(log_base < 1, np.log(np.expm1(np.minimum(log_base, 1.0))), log_base)
        excess = np.where(log_base < 1, excess, log_base + np.log1p(-np.exp(-log_base)))
    order = orders[:, None]
    inside = powers <= order
    rest = np.where(inside, order - powers, 0.0)
    choose = special.gammaln(order + 1) - special.gammaln(powers + 1) - special.gammaln(rest + 1)
    terms = choose + rest * math.log1p(-rate) + powers * math.log(rate) + excess
    total = special.logsumexp(np.where(inside, terms, -np.inf), axis=1)
    return np.asarray(np.logaddexp(0.0, total))


def interpolated(log_base: Array, order: float, rate: float) -> float:
    """An upper bound between whole orders: the logarithm of a moment is convex in its order."""
    below, above = math.floor(order), math.ceil(order)
    high = float(log_sampled_moments(log_base, np.array([float(above)]), rate)[0])
    low = 0.0
    if below > 1:
        low = float(log_sampled_moments(log_base, np.array([float(below)]), rate)[0])
    return low + (order - below) * (high - low) / max(above - below, 1)


def _as_mixture(pair: Pair, nodes: int) -> MixturePair:
    """The pair as finitely many components, by quadrature where it has a continuum of them."""
    if isinstance(pair, LaplacePair):
        return pair.components(nodes)
    if isinstance(pair, MixturePair):
        return pair
    raise TypeError(f"Rényi moments need a closed-form pair, got {type(pair).__name__}.")


def _log_moments(pair: Pair, powers: Array, rate: float) -> Array | None:
    """Logarithms of E_P[(M/P)^t] by quadrature; None where that would take too many nodes."""
    nodes = 0
    if isinstance(pair, LaplacePair):
        reach = 1 / pair.scale
        nodes = 24 + math.ceil(6 * reach) + math.ceil(0.6 * float(np.abs(powers).max()) * reach)
    if nodes > 4096:
        return None
    mixture = _as_mixture(pair, nodes)
    log_masses, losses = [], []
    for sigma in np.unique(mixture.sigma):
        here = (mixture.sigma == sigma) & (mixture.absent > 0)
        grid = _normal_grid(float(sigma), powers, int(np.sum(here)))
        if grid is None:
            return None
        x, log_weights = grid
        log_masses.append(np.add.outer(np.log(mixture.absent[here]), log_weights).ravel())
        losses.append(np.add.outer(mixture.losses[here], x / sigma - 0.5 / sigma**2).ravel())
    return _log_expectations(np.concatenate(log_masses), np.concatenate(losses), powers, rate)


def _log_expectations(log_masses: Array, losses: Array, powers: Array, rate: float) -> Array:
    """Logarithms of Σ mass (1 - q + q e^loss)^t, one for each power t."""
    log_ratio = _log_sampled_ratio(losses, rate)
    u = rate * np.expm1(np.minimum(losses, 700.0))
    masses = np.exp(log_masses)
    logs = np.empty(len(powers))
    for index, power in enumerate(powers):
        exponents = power * log_ratio
        if np.max(exponents) < 600:
            logs[index] = np.log1p(masses @ _excess(exponents, u, float(power)))
        else:
            # Far out the masses underflow just where the moment has its weight.
            logs[index] = special.logsumexp(exponents + log_masses)
    return logs


def _normal_grid(sigma: float, powers: Array, components: int) -> tuple[Array, Array] | None:
    """Nodes and logarithms of weights of the trapezoidal rule for the standard normal law."""
    if math.isinf(sigma):
        return np.zeros(1), np.zeros(1)
    # (M/P)^t is analytic in a strip of half-width πσ, which sets the step.
    step = min(0.25, 0.3 * sigma)
    low = min(0.0, float(powers.min())) / sigma - _TAIL_DISTANCE
    high = max(2.0, float(powers.max())) / sigma + _TAIL_DISTANCE
    if (high - low) / step * components > _MOST_NODES:
        return None
    x = np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64) * step
    return x, math.log(step / math.sqrt(2 * math.pi)) - 0.5 * x * x


def _log_sampled_ratio(losses: Array, rate: float) -> Array:
    """log(1 - q + q e^loss)."""
    if rate == 1:
        return losses
    small = np.log1p(rate * np.expm1(np.minimum(losses, 1.0)))
    large = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return np.where(losses < 1, small, large)


def _excess(exponents: Array, u: Array, power: float) -> Array:
    """(1 + u)^t - 1 - t u, exact also where u is tiny.

    The linear term integrates to zero, and leaving it out keeps what is left at its own size.
    """
    direct = np.expm1(exponents) - power * u
    tiny = np.abs(u) * (abs(power) + 2) < 0.02
    v = np.where(tiny, u, 0.0)
    term = 0.5 * power * (power - 1) * v * v
    series = term
    for k in range(3, 9):
        term = term * v * ((power - k + 1) / k)
        series = series + term
    return np.where(tiny, series, direct)
