"""What machines have, and read now."""
