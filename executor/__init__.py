"""Running decode loops, and comparing them.

`graph` describes a step; `planning` decides on which device, on which stream and in which memory each node runs;
`backends` are the devices; `scheduling` runs step after step as a strategy says; `run` runs and records configurations;
`commands` are the commands. Each imports only those before it.
"""
