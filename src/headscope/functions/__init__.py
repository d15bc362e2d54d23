"""Functional heads: questions that ask for one cognitive function each, finding the heads that serve it, generating
with them masked or steered, and scoring the answers."""
