"""What Headscope does under kill, damage, full disks, nonsense and two processes at once: counted, seeded trials.

    make faults                                   every group, with the numbers of trials of the bars
    PYTHONPATH=bench python -m faults kills --n 6 --seed 1

A group is a module with `trials(seed, n)`, which yields a `Trial` for each trial as it ends, and a row of `BARS`.
`process.py` runs the command line in processes that cost no import.
"""
