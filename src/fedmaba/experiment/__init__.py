"""An experiment: what to run, and running it."""
