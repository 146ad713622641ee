"""What follows a run: observers, progress on a terminal, trackers."""
