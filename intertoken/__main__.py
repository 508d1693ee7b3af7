"""`python -m intertoken`."""

from intertoken import main

main()
