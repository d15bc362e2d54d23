"""Which heads does a model use for a task, and how few are enough? Runs in seconds on the built-in tiny model."""

import headscope as hs

model = hs.load("nano")  # or "smollm2-135m", a folder, a GGUF file, a hub id
task = hs.tasks.ioi(model.tokenizer, n=50, seed=0)
print(f"accuracy {hs.check(model, task).accuracy:.2f}")
scores = hs.methods.patching(model, task)
print("heads that matter most:", scores.top(4))
curve = hs.sweep(model, task, scores)
by_chance = hs.sweep(model, task, hs.methods.random(model, task))
print(f"the 8 best heads explain {curve.explained[curve.k == 8][0]:.0%}")
print("random ranking against patching:", hs.multiplier(by_chance, curve, threshold=0.9))
