"""What a run leaves: the client x round table, the run folder, fairness figures. No torch."""
