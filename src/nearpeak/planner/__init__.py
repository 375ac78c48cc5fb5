"""Finds plans: the least recomputation for a memory budget."""
