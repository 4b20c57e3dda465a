"""Inject each fault of `tinyinfer.faults` and require that its named test turns red: `make faults`."""

import os
import re
import subprocess
import sys

from tinyinfer.faults import CAUGHT_BY


def run(tests: list[str], fault: str | None = None) -> subprocess.CompletedProcess:
    environment = os.environ | ({"TINYINFER_FAULT": fault} if fault else {})
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def main() -> int:
    healthy = run(sorted(set(CAUGHT_BY.values())))
    if healthy.returncode != 0:
        print(healthy.stdout, "these tests must pass before faults are injected", sep="\n")
        return 1
    unnoticed = []
    for fault, test in CAUGHT_BY.items():
        result = run([test], fault)
        # Exit code 1 is a failed test; anything else (nothing collected, crashed) proves nothing.
        caught = result.returncode == 1 and re.search(r"\d+ failed", result.stdout) is not None
        print(f"{'caught' if caught else 'NOT CAUGHT':10} {fault:28} {test}", flush=True)
        if not caught:
            unnoticed.append(fault)
            print(result.stdout[-1500:])
    print(f"{len(CAUGHT_BY) - len(unnoticed)} passed, {len(unnoticed)} failed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
