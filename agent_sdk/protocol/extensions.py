"""Extensions of the Open Inference Protocol that are ours."""

from typing import Final

LENDS: Final = "hope_lending"
"""Of servers that lend their processors: what is at ``/v2/hope``, and tensors that stay there."""
