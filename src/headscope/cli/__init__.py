"""The command line. Thin: it reads options, calls studies, and prints what they found."""

from headscope.cli.app import app, main

__all__ = ["app", "main"]
