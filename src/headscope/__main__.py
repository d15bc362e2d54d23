"""`python -m headscope`, the same as `headscope`."""

from headscope.cli.app import main

main()
