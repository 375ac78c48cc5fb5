"""Devices as they are now: drivers asked again and again, without ever waiting for one that does not answer."""
