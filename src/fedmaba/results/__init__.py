"""What a run leaves behind: the client x round table, the run folder, fairness. No torch."""
