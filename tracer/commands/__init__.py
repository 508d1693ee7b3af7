"""The commands that read recordings, one per file: its first line is the command's line in `intertoken --help`."""
