"""What the tests of runs share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))  # for its items of tasks
sys.path.insert(0, str(Path(__file__).parents[1] / "model"))  # for its small models of every kind
