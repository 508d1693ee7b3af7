"""The C sources of the light recorder's preloaded library; `compile.py` builds it."""
