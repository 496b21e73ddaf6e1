"""What to run, as data, and running it."""
