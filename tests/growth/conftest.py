"""What the tests of growth share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))  # for its small models of every kind
