"""The run folder: what was asked (`settings`), of which model, a file per unit of work (`run`), and who is at it
(`lock`). Nothing is imported here, so that a command's options can be told without NumPy or torch."""
