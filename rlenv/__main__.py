"""`python -m rlenv` is the `rlenv` command."""

import sys

from rlenv.cli.main import main

sys.exit(main())
