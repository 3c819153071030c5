"""What `import hpsearch` costs over a bare interpreter.

python -m studies.benchmarks.import_time [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time


def seconds(code: str) -> float:
    """Wall time of a fresh interpreter that runs `code`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    differences = [(seconds("import hpsearch") - seconds("pass")) * 1e3 for _ in range(rounds)]
    print(
        f"import hpsearch over a bare interpreter: {statistics.median(differences):.1f} ms (target 50), {rounds} rounds"
    )


if __name__ == "__main__":
    main()
