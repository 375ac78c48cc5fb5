"""Lets the tests of this folder, and the ranks that they start, share `trainer_tools`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
