"""The paper's experiments: data sets, models, every figure and table."""
