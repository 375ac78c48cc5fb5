"""Renderers of records; they compute nothing."""
