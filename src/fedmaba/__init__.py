"""fedmaba: fair federated learning by multi-armed-bandit allocation, and its rivals."""

__version__ = "0.1.0"
