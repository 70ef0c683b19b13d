"""Data sets, models and experiments: what `prudent train` and `prudent demo` run."""
