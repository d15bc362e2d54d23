"""Figures for people and papers, drawn from records alone."""
