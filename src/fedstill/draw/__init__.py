"""Every picture: partitions, sets, samples, figures, terminal."""
