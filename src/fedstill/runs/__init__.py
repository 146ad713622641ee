"""A run on disk: its folder, metrics, checkpoints, provenance and synthetic sets."""
