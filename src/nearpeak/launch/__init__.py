"""Starting commands: in environments of ours, watched from outside."""
