"""Who watches a run: observers, progress on a terminal, trackers."""
