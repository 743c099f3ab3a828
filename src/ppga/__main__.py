"""`python -m ppga` is the command line."""

from ppga.cli import main

main()
