"""What researchers use: data sets, models, recipes, corruption, the paper, the explorer."""
