"""Whole tasks on top of the training engine: data in, trained model out."""
