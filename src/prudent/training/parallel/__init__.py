"""Several processes: how they agree on one release, and models divided among them."""
