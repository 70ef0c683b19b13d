"""dpmm's MST or AIM on a table, given its true domain: run by `benchmarks.synth --peer-python`.

    python synth_peer.py MST real.csv made.csv EPSILON DELTA SEED

It stands alone, because dpmm needs versions of packages that this project does not have:
`pip install dpmm` into an environment of its own. The true domain (ends of numbers, all
categories) is read from the table, which is not private and favours the peer.
"""

import sys

import numpy as np
import pandas as pd


def main() -> None:
    method, source, target, epsilon, delta, seed = sys.argv[1:]
    from dpmm import pipelines

    real = pd.read_csv(source)
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
    model = getattr(pipelines, f"{method}Pipeline")(epsilon=float(epsilon), delta=float(delta))
    model.fit(real, domain, random_state=np.random.RandomState(int(seed)))
    made = model.generate(n_records=len(real))
    for name in made.columns:
        if not pd.api.types.is_numeric_dtype(made[name]):
            made[name] = made[name].astype(str)
    made.to_csv(target, index=False)


if __name__ == "__main__":
    main()
