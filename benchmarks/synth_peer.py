"""A peer's synthetic table, given its true domain: run by `benchmarks.synth --peer-python`.

    python synth_peer.py MST real.csv made.csv EPSILON DELTA SEED

`MST` is dpmm's, `AIM` OpenDP's. Each stands in an environment of its own, because they need
versions of packages that this project does not have: `pip install dpmm`, or
`pip install 'opendp[mbi]==0.16.*' mbi==1.1 polars pandas`. The true domain (ends of numbers, all
categories) is read from the table, which is not private and favours the peer. AIM takes categories
alone, so it needs `--peer-bins`, and draws its own noise whatever the seed is.
"""

import math
import sys

import numpy as np
import pandas as pd


def mst(real: pd.DataFrame, epsilon: float, delta: float, seed: int) -> pd.DataFrame:
    from dpmm import pipelines

    domain: dict[str, dict[str, object]] = {}
    for name in real.columns:
        if pd.api.types.is_bool_dtype(real[name]):
            real[name] = real[name].astype(str)
        if pd.api.types.is_numeric_dtype(real[name]):
            real[name] = real[name].astype(float)
            ends = {"lower": float(real[name].min()), "upper": float(real[name].max())}
            domain[name] = ends
        else:
            real[name] = real[name].astype("category")
            domain[name] = {"categories": list(real[name].cat.categories)}
    model = pipelines.MSTPipeline(epsilon=epsilon, delta=delta)
    model.fit(real, domain, random_state=np.random.RandomState(seed))
    return model.generate(n_records=len(real))


def aim(real: pd.DataFrame, epsilon: float, delta: float, seed: int) -> pd.DataFrame:
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    rho = largest_rho(epsilon, delta)
    frame = pl.from_pandas(real.astype(str)).lazy()
    context = dp.Context.compositor(
        data=frame, privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(rho=rho)
    )
    keys = {name: sorted(set(real[name].astype(str))) for name in real.columns}
    query = context.query(rho=rho).contingency_table(keys=keys, algorithm=dp.mbi.AIM())
    return query.release().synthesize(rows=len(real)).to_pandas()


def largest_rho(epsilon: float, delta: float) -> float:
    """The largest ρ of zero-concentrated DP that implies (ε, δ), by the best Rényi order."""
    orders = 1 + np.geomspace(1e-3, 1e4, 4000)

    def log_delta(rho: float) -> float:
        found = (orders - 1) * (orders * rho - epsilon) - np.log(orders - 1)
        return float((found + orders * np.log1p(-1 / orders)).min())

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(middle) <= math.log(delta) else (low, middle)
    return low


def main() -> None:
    method, source, target, epsilon, delta, seed = sys.argv[1:]
    real = pd.read_csv(source)
    made = {"MST": mst, "AIM": aim}[method](real, float(epsilon), float(delta), int(seed))
    for name in made.columns:
        if not pd.api.types.is_numeric_dtype(made[name]):
            made[name] = made[name].astype(str)
    made.to_csv(target, index=False)


if __name__ == "__main__":
    main()
