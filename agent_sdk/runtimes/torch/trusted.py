"""What torch is trusted with: ops of its table, in the types in which they mean the same.

NOTE: a GPU looks at no index, and ends the process where one lies outside.
"""

from typing import Final

from agent_sdk.model.bounds import WIDE
from agent_sdk.runtimes.trust import WHY, Row, Trust, asked, kinds_read, on_axes
from hope_schema import ModelGraph, Op
from hope_schema.graph import SPRING

FLOATS: Final = "f32 f16"
DOUBLES: Final = "f32 f16 f64"
NUMBERS: Final = "f32 f16 f64 bool i8 u8 i16 i32 i64"
WHOLE: Final = "i8 u8 i16 i32 i64"
HIDES_NOTHING: Final = "not what may hide what is no number"


def _to_whole(op: Op, graph: ModelGraph) -> str:
    made, read = graph.tensor[op.outputs[0]].dtype, kinds_read(op, graph)[0]
    return "floats beyond the range of a whole number become others" if "float" in read and "int" in made else ""


def _hiding(op: Op, graph: ModelGraph) -> str:
    return WHY[SPRING] if SPRING in op.marks else ""


TORCH: Final = Trust(
    Row(
        "Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape ScatterElements "
        "ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where",
        NUMBERS,
    ),
    Row("Dropout", DOUBLES, unless=asked, but="a constant ratio"),
    Row("Pad", "f32 f16 f64 i8 u8 i16 i32", unless=on_axes, but="constant pads, of all axes"),
    Row("Abs Add Mul Neg Sub", f"{DOUBLES} {WHOLE}"),
    Row("Clip Max Min", f"{DOUBLES} {WHOLE}"),
    Row(
        "Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
        "LeakyRelu Log Mean Mish Mod PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sin Sinh Softplus Softsign "
        "Sqrt Sum Swish Tan Tanh",
        FLOATS,
    ),
    Row(
        "AveragePool BatchNormalization Conv ConvTranspose CumSum Einsum Gemm GlobalAveragePool GroupNormalization "
        "InstanceNormalization LayerNormalization LogSoftmax LpNormalization LpPool MatMul MeanVarianceNormalization "
        "RMSNormalization ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum "
        "ReduceSumSquare Resize Softmax Upsample",
        FLOATS,
    ),
    Row(
        "GlobalMaxPool Hardmax MaxPool ReduceMax ReduceMin Sign ThresholdedRelu",
        FLOATS,
        unless=_hiding,
        but=HIDES_NOTHING,
    ),
    Row("LRN", "f32", unless=_hiding, but=HIDES_NOTHING),
    Row("ArgMax ArgMin", FLOATS, "i64", unless=_hiding, but=HIDES_NOTHING),
    Row("TopK", FLOATS, f"{FLOATS} i64", unless=_hiding, but=HIDES_NOTHING),
    Row("Equal Greater GreaterOrEqual Less LessOrEqual", NUMBERS, "bool"),
    Row("IsInf IsNaN", FLOATS, "bool"),
    Row("And Or Xor Not", "bool"),
    Row("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", WHOLE),
    Row("OneHot", "i32 i64", NUMBERS),
    Row("Cast", NUMBERS, unless=_to_whole, but="no float to whole number"),
    bears=(SPRING, WIDE),
)
