"""What another plan would need and take, before it runs: memory, speed, communication, cost."""
