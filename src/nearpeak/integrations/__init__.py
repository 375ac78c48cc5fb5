"""nearpeak inside other people's trainers."""
