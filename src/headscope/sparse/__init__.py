"""Post-training that makes attention sparse: the settings, the objective, the text, the loop, and its checkpoints.

(Nothing is imported here: the settings are told without torch.)
"""
