"""What a part of an op reads: which rows or channels of which tensor, and with which padding.

Whoever makes a region of an op's output reads a region of each of its inputs, or all of it, and is otherwise the same
op with other pads or groups (CoDL section 4.1, D3 section 3.3). A rule is of one axis: a box is a part of a part. The
rules are exact: parts computed so, put side by side, are the whole. What has no rule stays whole, and says why.
"""

from hope_schema.cutrules.rules import LARGEST, RULES, PartOp, demands, granularity, part_of, reads
from hope_schema.cutrules.view import MisalignedError
