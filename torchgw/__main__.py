"""``python -m torchgw`` is the ``torchgw`` command."""

import sys

from torchgw.cli import main

sys.exit(main())
