"""`python -m lastword` is the command `lastword`."""

from lastword.cli.main import main

main()
