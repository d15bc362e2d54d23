"""Peak resident memory of patching all heads of the real model: it must not grow with the number of prompts.

python bench/memory.py [prompts ...]
"""

from __future__ import annotations

import subprocess
import sys

WORK = """
import resource, sys
import headscope as hs
model = hs.load("smollm2-135m")
loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hs.methods.patching(model, hs.tasks.ioi(model.tokenizer, n=int(sys.argv[1])))
print(loaded, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    # Linux counts in KiB, macOS in bytes.
    unit = 2**20 if sys.platform != "darwin" else 2**30
    for prompts in sys.argv[1:] or ["100", "400"]:
        answer = subprocess.run([sys.executable, "-c", WORK, prompts], capture_output=True, text=True, check=True)
        loaded, peak = (int(word) / unit for word in answer.stdout.split())
        print(f"{prompts} prompts: peak {peak:.2f} GiB (bar: 4 GiB), of which loading the model {loaded:.2f} GiB")


if __name__ == "__main__":
    main()
