"""Differential privacy of clients: what is bounded, how much noise it takes, what is spent."""
