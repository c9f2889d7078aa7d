"""What the tests of finished runs share."""

import sys
from pathlib import Path

for neighbour in ("training", "evaluation"):  # for their tiny runs and items
    sys.path.insert(0, str(Path(__file__).parents[1] / neighbour))
