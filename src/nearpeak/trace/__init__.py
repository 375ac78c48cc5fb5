"""Reads traces of any profiler into one `Timeline`."""
