"""How tasks and cognitive functions are called in figures and on pages."""

from __future__ import annotations

TITLES = {
    "ioi": "IOI", "ioi-long": "IOI Long", "greater-than": "Greater Than", "docstring": "Docstring", "syntax": "Syntax",
    "common-sense": "Common Sense", "common-sense-letters": "Common Sense (letters)", "math": "Math",
    "retrieval": "Retrieval", "knowledge-recall": "Knowledge Recall",
    "semantic-understanding": "Semantic Understanding", "syntactic-understanding": "Syntactic Understanding",
    "math-calculation": "Math Calculation", "inference": "Inference", "logical-reasoning": "Logical Reasoning",
    "decision-making": "Decision-making",
}  # fmt: skip


def task_title(task: str) -> str:
    """A task or function as people call it."""
    return TITLES.get(task, task)
