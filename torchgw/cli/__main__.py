"""``python -m torchgw.cli`` is the ``torchgw`` command."""

import sys

from torchgw.cli import main

sys.exit(main())
