"""Watching a command from inside its own processes."""
