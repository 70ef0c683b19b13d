"""Ways into private training for loops, trainers and federations that others wrote."""
