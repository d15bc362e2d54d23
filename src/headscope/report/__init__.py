"""Figures and pages, made from records and run folders only."""
