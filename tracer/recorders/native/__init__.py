"""The C sources of the recorder's preloaded library; `compile.py` builds it."""
