"""Stands first on PYTHONPATH of an attached command; holds only a sitecustomize."""
