"""Functional heads: questions that ask for one cognitive function each, finding the heads that serve it, generating
with them masked or pushed, and scoring the answers."""
