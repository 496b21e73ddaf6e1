"""The paper's tables and figures: what to run, what was run, ours beside the paper's."""
