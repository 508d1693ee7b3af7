"""The C of the light recorder's preloaded library; `compile.py` says how it is made."""
