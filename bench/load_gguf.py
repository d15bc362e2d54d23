"""Loading a GGUF file: peak memory beyond what imports take, as a multiple of the weights in float32, and how much
quicker the second load is, from the copy in the cache.

python bench/load_gguf.py FILE.gguf
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

WORK = """
import resource, sys, time
import gguf, peft, headscope.models.gguf
from headscope.models.loading import load
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, began = peak(), time.perf_counter()
model = load(sys.argv[1])
print(time.perf_counter() - began, peak() - before, sum(p.nbytes for p in model.hf.parameters()))
"""


def main() -> None:
    # Linux counts in KiB, macOS in bytes.
    unit = 1024 if sys.platform != "darwin" else 1
    with tempfile.TemporaryDirectory() as cache:
        environment, seconds = {**os.environ, "HEADSCOPE_CACHE": cache}, []
        for which in ("first load", "second load"):
            command = [sys.executable, "-c", WORK, sys.argv[1]]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
            took, peak, size = map(float, said.split())
            seconds.append(took)
            print(f"{which}: {took:.1f} s, peak {peak * unit / size:.2f} x the float32 weights ({size / 1e6:.0f} MB)")
    print(f"The second is {seconds[0] / seconds[1]:.1f} x quicker")


if __name__ == "__main__":
    main()
