"""Rényi divergences of dominating pairs, Poisson-sampled or not, at every order from 1 to infinity.

Let M be the distribution with the record sampled in at rate q, and P the one without it. Both
directions are the same integral, E_P[(M/P)^t]: t = α when removing a record, t = 1 - α when adding
one. Removing has a closed form at integer orders (Errata 2.2). Everything else is a sum of smooth
one-dimensional integrals, for which the trapezoidal rule converges faster than any power of its
step. Orders above `_MOST_POWERS` get an upper bound, which needs no more memory than lower orders.
Order 1 is the Kullback-Leibler divergence and order infinity the largest loss.

At the end are the conversions from divergences to (ε, δ), and the exact ones of Gaussian noise.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from prudent import _validate
from prudent.accounting import _numeric
from prudent.accounting._numeric import Array, Numbers, expm1_minus, smallest
from prudent.accounting.losses.pairs import BoundedRangePair, LaplacePair, MixturePair, Pair

_TAIL_DISTANCE = 9.5  # in standard deviations
_MOST_NODES = 1 << 21  # most nodes of one integral, over all components
_NEAR_ONE = 1.01  # the conversions of finite orders lose all digits up to this order
_MOST_POWERS = 1 << 14  # most terms of the closed form at an integer order; above it, a bound


def renyi_divergence(pair: Pair, orders: Array, rate: float, *, adding: bool = False) -> Array:
    """D_α of the sampled pair at each order: D(M || P), or D(P || M) when `adding`."""
    if rate == 1 and adding:
        return renyi_divergence(pair.swapped(), orders, rate)
    found = np.full(orders.shape, np.inf)
    if pair.infinite_mass > 0:
        return found
    if rate == 1 and isinstance(pair, MixturePair) and len(pair.sigma) == 1:
        return orders / 2 / pair.sigma**2 if pair.sigma[0] < np.inf else np.zeros(orders.shape)
    found[orders == 1] = kullback_leibler(pair, rate, adding=adding)
    found[orders == np.inf] = largest_loss(pair, rate, adding=adding)
    closed = np.zeros(orders.shape, bool) if adding else orders == np.floor(orders)
    # Near order 1 the first-order terms of the closed form cancel; quadrature omits them.
    closed |= (orders > _MOST_POWERS) | ((rate == 1) & (orders >= 2))
    closed &= (orders > 1) & (orders < np.inf)
    if np.any(closed):
        found[closed] = _from_base_moments(pair, orders[closed], rate, adding)
    # Orders within a factor of two share their nodes.
    rest = (orders > 1) & (orders < np.inf) & ~closed
    octave = np.ceil(np.log2(np.where(rest, orders, 1.0)))
    for group in np.unique(octave[rest]):
        here = rest & (octave == group)
        powers = 1 - orders[here] if adding else orders[here]
        nodes = _nodes(pair, powers)
        if nodes is None:
            found[here] = _from_base_moments(pair, orders[here], rate, adding)
        else:
            logs = _log_expectations(*nodes, powers, rate)
            found[here] = np.maximum(0.0, logs) / (orders[here] - 1)
    return found


def _from_base_moments(pair: Pair, orders: Array, rate: float, adding: bool) -> Array:
    """D_α, or an upper bound on it, from the moments before sampling."""
    if adding:
        return _bound_of_adding(pair, orders, rate)
    if rate == 1 and np.all(orders >= 2):  # the closed form also holds at non-integer orders
        return np.maximum(0.0, log_base_moments(pair, orders)) / (orders - 1)
    return divergence_of_removing(lambda powers: log_base_moments(pair, powers), orders, rate)


def divergence_of_removing(log_base: Callable[[Array], Array], orders: Array, rate: float) -> Array:
    """D_α(M || P) at finite orders above 1, from logarithms of moments before sampling.

    Guarantee:
        Exact at integer orders up to `_MOST_POWERS`, and an upper bound at all others. Above
        `_MOST_POWERS`, Minkowski's inequality bounds the norm of M/P = (1-q) + q r by (1-q) plus q
        times the norm of r. Between integer orders the logarithm of the moment is convex, so its
        chord is an upper bound.
    """
    wholes = np.unique(np.append(np.floor(orders), np.ceil(orders)))
    logs = np.zeros(wholes.shape)  # 0 is the value at order 1
    near = (wholes > 1) & (wholes <= _MOST_POWERS)
    if np.any(near):
        powers = np.arange(2, int(wholes[near].max()) + 1, dtype=np.float64)
        logs[near] = log_sampled_moments(log_base(powers), wholes[near], rate)
    far = wholes > _MOST_POWERS
    logs[far] = wholes[far] * log_sampled_ratio(log_base(wholes[far]) / wholes[far], rate)
    low = logs[np.searchsorted(wholes, np.floor(orders))]
    high = logs[np.searchsorted(wholes, np.ceil(orders))]
    with np.errstate(invalid="ignore"):
        chord = low + (orders - np.floor(orders)) * (high - low)
    chord = np.where(np.isfinite(high), chord, np.inf)
    return np.asarray(np.maximum(0.0, chord) / (orders - 1))


def _bound_of_adding(pair: Pair, orders: Array, rate: float) -> Array:
    """An upper bound on D_α(P || M): x^(1-α) is convex, and no order exceeds the largest loss."""
    swapped, whole = pair.swapped(), np.ceil(orders)
    unsampled = np.full(orders.shape, np.inf)
    if swapped.infinite_mass == 0:
        unsampled = log_base_moments(swapped, whole)
    convex = log_sampled_ratio(unsampled, rate) / (whole - 1)
    return np.asarray(np.clip(convex, 0.0, largest_loss(pair, rate, adding=True)))


def kullback_leibler(pair: Pair, rate: float, *, adding: bool = False) -> float:
    """D_1 of the sampled pair; by convexity at most q times that of the unsampled pair."""
    one_way = pair.swapped() if adding else pair
    bound = math.inf
    if one_way.infinite_mass == 0:
        bound = rate * _unsampled_kullback_leibler(one_way)
    nodes = None if rate == 1 else _nodes(pair, np.array([0.0, 1.0]))
    if nodes is None:
        return bound
    log_masses, losses = nodes
    log_ratio = log_sampled_ratio(losses, rate)
    # E_P[r log r] and E_P[-log r] without the linear term, whose mean is zero: the integrand is
    # r (e^-l - 1 + l) or e^l - 1 - l at l = log r, and never negative.
    terms = _log_expm1_minus(log_ratio) if adding else log_ratio + _log_expm1_minus(-log_ratio)
    return min(bound, float(np.sum(np.exp(log_masses + terms))))


def _unsampled_kullback_leibler(pair: Pair) -> float:
    if isinstance(pair, LaplacePair):
        return float(expm1_minus(np.asarray(-1 / pair.scale))) + 0.5 / pair.sigma**2
    if isinstance(pair, BoundedRangePair):
        return 2 * _x_coth_x_minus_one(pair.reach / 2)
    mixture = _as_mixture(pair, 0)
    used = mixture.present > 0
    labels = np.exp(np.log(mixture.present[used]) + _log_expm1_minus(-mixture.losses[used]))
    noises = 0.5 * mixture.present[used] * mixture.sigma[used] ** -2.0
    return float(np.sum(labels) + np.sum(noises) + np.sum(mixture.absent[~used]))


def _x_coth_x_minus_one(x: float) -> float:
    if x > 0.1:
        return x / math.tanh(x) - 1
    square = x * x
    return square * (1 / 3 - square * (1 / 45 - square * (2 / 945 - square / 4725)))


def _log_expm1_minus(x: Array) -> Array:
    """log(e^x - 1 - x), without overflow."""
    with np.errstate(divide="ignore"):
        near = np.log(expm1_minus(np.minimum(x, 2.0)))
    right = np.maximum(x, 2.0)
    return np.where(x < 2, near, right + np.log1p(-(1 + right) * np.exp(-right)))


def largest_loss(pair: Pair, rate: float, *, adding: bool = False) -> float:
    """D_∞ of the sampled pair: the supremum of log(M/P), or of log(P/M) when `adding`."""
    unsampled = np.array((pair.swapped() if adding else pair).largest_loss)
    if adding:
        return float(-log_sampled_ratio(-unsampled, rate))
    return float(log_sampled_ratio(unsampled, rate))


def log_base_moments(pair: Pair, powers: Array) -> Array:
    """Logarithm of E_absent[(present/absent)^k] at powers k >= 2, in closed form."""
    if isinstance(pair, LaplacePair):
        test = (powers - 1) * laplace_rdp(powers, pair.scale)
        return np.asarray(test + _gaussian_log_moments(powers, pair.sigma))
    if isinstance(pair, BoundedRangePair):
        return _log_sinhc((powers - 0.5) * pair.reach) - _log_sinhc(np.array(pair.reach / 2))
    mixture = _as_mixture(pair, 0)
    used = mixture.present > 0
    column = powers[:, None]
    with np.errstate(over="ignore"):
        exponents = column * mixture.losses[used] + _gaussian_log_moments(
            column, mixture.sigma[used]
        )
    # The absent masses of the used components need not sum to one; the missing components have
    # (present/absent)^k = 0 and add nothing.
    unused = float(np.sum(mixture.absent[~used]))
    direct = np.expm1(np.minimum(exponents, 1.0)) @ mixture.absent[used] - unused
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log1p(direct)
    far = _numeric.log_sum(exponents + np.log(mixture.absent[used]))
    return np.where(np.max(exponents, axis=1) < 1, near, far)


def _log_sinhc(x: Array) -> Array:
    """log(sinh(x)/x) for x > 0, to full relative precision."""
    square = np.minimum(x, 0.1) ** 2
    terms = 1 / 6 - square * (1 / 180 - square * (1 / 2835 - square * (1 / 37800)))
    far = np.maximum(x, 0.1)
    return np.where(x < 0.1, square * terms, far + np.log(-np.expm1(-2 * far) / (2 * far)))


def _gaussian_log_moments(powers: Array, sigma: float | Array) -> Array:
    """Return k (k-1) / (2 σ²), infinite where that overflows and zero at infinite σ."""
    with np.errstate(over="ignore"):
        return np.asarray(0.5 * powers * ((powers - 1) / np.square(sigma)))


def log_sampled_moments(log_base: Array, orders: Array, rate: float) -> Array:
    """Logarithm of E_P[(M/P)^a] at integer orders a, from log_base[k - 2] before sampling.

    E = 1 + Σ_k C(a, k) (1-q)^(a-k) q^k (m_k - 1), k = 2..a (Errata 2.2).
    """
    from scipy import special

    if rate == 1:
        return np.asarray(log_base[orders.astype(int) - 2])
    powers = np.arange(2, len(log_base) + 2, dtype=np.float64)
    with np.errstate(divide="ignore"):
        excess = np.where(log_base < 1, np.log(np.expm1(np.minimum(log_base, 1.0))), log_base)
        excess = np.where(log_base < 1, excess, log_base + np.log1p(-np.exp(-log_base)))
    logs = np.empty(orders.shape)
    factorials = special.gammaln(np.arange(len(log_base) + 2) + 1.0)
    for index, order in enumerate(orders):  # one at a time, to avoid a large matrix
        k = powers[: int(order) - 1]
        choose = factorials[int(order)] - factorials[2 : len(k) + 2] - factorials[len(k) - 1 :: -1]
        terms = choose + (order - k) * math.log1p(-rate) + k * math.log(rate) + excess[: len(k)]
        logs[index] = np.logaddexp(0.0, _numeric.log_sum(terms))
    return logs


def _as_mixture(pair: Pair, nodes: int) -> MixturePair:
    """Convert a pair to finitely many components, by quadrature if it has a continuum of them."""
    if isinstance(pair, LaplacePair | BoundedRangePair):
        return pair.components(nodes)
    if isinstance(pair, MixturePair):
        return pair
    raise TypeError(f"Rényi moments need a closed-form pair, got {type(pair).__name__}.")


def _nodes(pair: Pair, powers: Array) -> tuple[Array, Array] | None:
    """The quadrature for these powers: log masses under P and losses before sampling, or None."""
    nodes = 0
    if isinstance(pair, LaplacePair | BoundedRangePair):
        reach = pair.reach
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
    return np.concatenate(log_masses), np.concatenate(losses)


def _log_expectations(log_masses: Array, losses: Array, powers: Array, rate: float) -> Array:
    """Logarithms of Σ mass (1 - q + q e^loss)^t, one for each power t."""
    log_ratio = log_sampled_ratio(losses, rate)
    u = rate * np.expm1(np.minimum(losses, 700.0))
    masses = np.exp(log_masses)
    logs = np.empty(len(powers))
    for index, power in enumerate(powers):
        exponents = power * log_ratio
        if np.max(exponents) < 600:
            logs[index] = np.log1p(masses @ _excess(exponents, u, float(power)))
        else:
            # The masses underflow where they contribute most to the moment, so sum logarithms.
            logs[index] = _numeric.log_sum(exponents + log_masses)
    return logs


def _normal_grid(sigma: float, powers: Array, components: int) -> tuple[Array, Array] | None:
    """Nodes and log weights of the trapezoidal rule for the standard normal distribution."""
    if math.isinf(sigma):
        return np.zeros(1), np.zeros(1)
    # (M/P)^t is analytic in a strip of half-width πσ, which determines the step.
    step = min(0.25, 0.3 * sigma)
    low = min(0.0, float(powers.min())) / sigma - _TAIL_DISTANCE
    high = max(2.0, float(powers.max())) / sigma + _TAIL_DISTANCE
    if (high - low) / step * components > _MOST_NODES:
        return None
    x = np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64) * step
    return x, math.log(step / math.sqrt(2 * math.pi)) - 0.5 * x * x


def log_sampled_ratio(losses: Array, rate: float) -> Array:
    """log(1 - q + q e^loss)."""
    if rate == 1:
        return losses
    small = np.log1p(rate * np.expm1(np.minimum(losses, 1.0)))
    large = np.logaddexp(math.log1p(-rate), math.log(rate) + losses)
    return np.where(losses < 1, small, large)


def _excess(exponents: Array, u: Array, power: float) -> Array:
    """Return (1 + u)^t - 1 - t u, accurate also where u is tiny.

    The linear term integrates to zero; omitting it avoids cancellation.
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


def laplace_rdp(order: ArrayLike, scale: float) -> Numbers:
    """The exact Rényi divergence of Laplace noise at any order above one.

    With a the order and b the scale, the moment is
    a/(2a-1) e^((a-1)/b) + (a-1)/(2a-1) e^(-a/b). Its two first-order terms cancel and are omitted,
    so that the result is accurate near order one and at large scales.
    """
    a = _numeric.orders(order)
    b = _validate.positive(scale=scale)
    up, down = (a - 1) / b, a / b
    with np.errstate(over="ignore", invalid="ignore"):
        excess = (a * expm1_minus(up) + (a - 1) * expm1_minus(-down)) / (2 * a - 1)
        near = np.log1p(excess)
    far = up + np.log((a + (a - 1) * np.exp(-up - down)) / (2 * a - 1))
    return (np.where(up < 1, near, far) / (a - 1))[()]


def rdp_to_epsilon_balle(order: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The conversion of Balle et al. 2020 and of Canonne, Kamath and Steinke 2020.

    ε = rdp + log(1 - 1/order) - (log δ + log order) / (order - 1), the least over all orders.
    """
    a, divergence = np.broadcast_arrays(
        np.atleast_1d(_numeric.orders(order)), np.asarray(rdp, dtype=np.float64)
    )
    if a.size == 0:
        raise _validate.ArgumentError("order", "with at least one entry", shown="none")
    _validate.between(0, math.inf, rdp=divergence.min())
    delta = _validate.between(0, 1, ends="()", delta=delta)
    return max(0.0, float(np.min(improved_conversion(a, divergence, delta))))


def improved_conversion(a: Array, divergence: Array, delta: float) -> Array:
    """`rdp_to_epsilon_balle` at each order; it may be negative."""
    return divergence + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)


def best_epsilon(order: Array, rdp: Array, delta: float) -> tuple[float, float]:
    """Return the smallest ε over all orders, 1 and infinity included, and the order that gives it.

    At finite orders ε is that of `rdp_to_epsilon_balle`; at order infinity it is that of randomised
    response, the worst pair with these losses. At every order, ε = 0 where Bretagnolle and Huber's
    bound on the total variation distance, sqrt(1 - e^-rdp), is below δ. At δ = 0 only order
    infinity gives a finite ε, unless nothing was released.
    """
    epsilons = np.full(order.shape, np.inf)
    inside = (order > _NEAR_ONE) & (order < np.inf)
    if delta > 0:
        epsilons[inside] = improved_conversion(order[inside], rdp[inside], delta)
    largest = rdp[order == np.inf] * (1 + 1e-13)  # a sum of rounded losses, and attained
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.maximum(0.0, 1 - delta * (1 + np.exp(-largest)))
        epsilons[order == np.inf] = np.where(largest < np.inf, largest + np.log(kept), np.inf)
    epsilons[(delta**2 + np.expm1(-rdp) > 0) | (rdp == 0)] = 0.0
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(order[best])


def best_delta(order: Array, rdp: Array, epsilon: float) -> tuple[float, float]:
    """Return the smallest δ over all orders, as in `best_epsilon`, and the order that gives it."""
    log_deltas = 0.5 * _log_expm1_negative(rdp)
    inside = (order > _NEAR_ONE) & (order < np.inf) & (rdp < np.inf)
    a, divergence = order[inside], rdp[inside]
    balle = (a - 1) * (divergence - epsilon + np.log1p(-1 / a)) - np.log(a)
    log_deltas[inside] = np.minimum(log_deltas[inside], balle)
    largest = (order == np.inf) & (rdp < np.inf)
    excess = np.maximum(0.0, rdp[largest] - epsilon)
    response = _log_expm1_negative(excess) - np.log1p(np.exp(-rdp[largest]))
    log_deltas[largest] = np.minimum(log_deltas[largest], response)
    best = int(np.argmin(log_deltas))
    return min(1.0, math.exp(log_deltas[best])), float(order[best])


def _log_expm1_negative(x: Array) -> Array:
    """log(1 - e^-x)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(-np.expm1(-x)))


def gaussian_delta(epsilon: ArrayLike, sigma: float) -> Numbers:
    """Exact privacy profile of Gaussian noise, for any finite ε.

    δ(ε) = Φ(1/(2σ) - εσ) - e^ε Φ(-1/(2σ) - εσ). In the tail both terms share the factor of a
    Gaussian density; factoring it out keeps the relative precision of tiny δ.
    """
    from scipy import special

    sigma = _validate.positive(sigma=sigma)
    loss = np.asarray(epsilon, dtype=np.float64)
    if not np.all(np.isfinite(loss)):
        raise _validate.ArgumentError("epsilon", "finite", got=epsilon)
    half = 1 / (2 * sigma)
    upper, lower = half - loss * sigma, -half - loss * sigma
    depth = np.maximum(-upper, 0.0)
    mills = special.erfcx(depth / math.sqrt(2)) - special.erfcx((depth + 2 * half) / math.sqrt(2))
    tail = np.exp(-(depth**2) / 2) * mills / 2
    body = special.ndtr(upper) - np.exp(np.minimum(loss + special.log_ndtr(lower), 0.0))
    return np.clip(np.where(upper < 0, tail, body), 0.0, 1.0)[()]


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Smallest ε >= 0 with δ(ε) <= delta under Gaussian noise: exact, rounded up.

    Guarantee: the result is never below the true ε. The profile is inverted at a δ one part in 10^9
    smaller than requested, which exceeds the rounding error of `gaussian_delta` for any σ up to
    10^5.
    """
    sigma = _validate.positive(sigma=sigma)
    delta = _validate.between(0, 1, ends="()", delta=delta)
    target = delta * (1 - 1e-9)
    # Concentrated differential privacy gives a valid, larger ε as upper end of the search.
    enough = 1 / (2 * sigma**2) + math.sqrt(2 * -math.log(target)) / sigma
    return float(smallest(lambda e: np.asarray(gaussian_delta(e, sigma) <= target), 0.0, enough))
