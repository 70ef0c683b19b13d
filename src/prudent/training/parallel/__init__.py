"""Training with several processes: agreeing on one release, and sharded models."""
