"""The command line: one file a verb; a verb's room is imported when the verb runs."""
