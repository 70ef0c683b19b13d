"""What makes files that are shipped; not shipped itself."""
