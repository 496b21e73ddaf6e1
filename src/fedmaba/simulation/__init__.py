"""The simulator: batches of runs, round after round. Knows no algorithm and writes no file."""
