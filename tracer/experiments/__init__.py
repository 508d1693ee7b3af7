"""Programs run in turns: which of several variants is faster, and which commit made a program slower."""
