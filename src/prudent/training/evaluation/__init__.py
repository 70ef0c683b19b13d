"""What a run is judged by: held-out records, and the best of its models."""
