"""Files: outputs that overwrite nothing, inputs read within bounds, and the cache of what was read."""
