"""The program `tenon`: `python -m tenon run model.onnx`."""

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "_native" / "bin" / "tenon"


def main() -> None:
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])


if __name__ == "__main__":
    main()
