"""``python -m agent_sdk.cli`` is ``hope-agent``."""

import sys

from agent_sdk.cli import main

sys.exit(main())
