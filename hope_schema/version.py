"""The version of this distribution, for both wings and for the wheel."""

from typing import Final

VERSION: Final = "0.1.0"
