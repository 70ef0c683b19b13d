"""What a release costs."""
