"""Studies: compositions of the other parts that end in a run folder."""
