"""Running models: interventions, batches, answers, sessions that run from the middle, gradients, edges."""
