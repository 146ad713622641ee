"""Ways to compute a layer faster."""
