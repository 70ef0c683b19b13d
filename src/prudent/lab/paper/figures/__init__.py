"""The paper's figures: their data and their plots."""
