"""The commands that are built in, one module for each family."""
