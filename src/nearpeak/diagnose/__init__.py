"""Says what holds a run back: facts in, findings out. Reads no files and no clocks."""
