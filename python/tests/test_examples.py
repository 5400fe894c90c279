"""The examples run: on the real digits where scripts/fetch-data has put them, else on images that are as easy."""

import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "examples"))


class Examples(unittest.TestCase):
    def test_digits(self):
        import digits
        real = ROOT / "data" / "digits.csv"
        with tempfile.TemporaryDirectory() as folder:
            path, epochs = real, 8
            if not real.exists():
                rng = np.random.default_rng(5)
                faces, labels = rng.integers(0, 16, (10, 64)), rng.integers(0, 10, 1000)
                table = np.concatenate([np.clip(faces[labels] + rng.integers(-2, 3, (1000, 64)), 0, 16), labels[:, None]], 1)
                path, epochs = Path(folder) / "digits.csv", 4
                np.savetxt(path, table, "%d", delimiter=",")
            self.assertGreater(digits.main(str(path), str(epochs)), 0.9)


if __name__ == "__main__":
    unittest.main()
