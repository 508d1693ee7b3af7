"""What the commands print: tables, words and JSON facts."""
