"""`python -m hpsearch` is the program `hpsearch`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
