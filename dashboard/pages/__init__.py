"""Pages: what stands where, and which callback feeds it. No computing in here."""
