"""The version and the name of this distribution, for both wings; the version for the wheel, too."""

from typing import Final

VERSION: Final = "0.1.0"
DISTRIBUTION: Final = "hope-inference"
"""The name it is installed by; among a device's versions it stands for the agent."""
