"""A GPU that is not there: runs an unmodified model's training step on tensors without data, and writes down every
allocation. Imported by the process that does nothing else (`worker`), since it changes how torch behaves in it."""
