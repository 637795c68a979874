"""What OpenVINO is trusted with on tensors of ordinary values.

It holds whole numbers of 64 bits in 32 and doubles in float32, compares numbers of 32 bits as float32, saturates where
8 bits wrap, and looks at no index. So whole numbers are moved and, as far as they are small, compared; hardly any op
that computes with them is taken.
"""

from typing import Final

from agent_sdk.runtimes.trust import Row, Trust, asked, kinds_read, on_axes
from hope_schema import ModelGraph, Op

FLOATS: Final = "f32 f16"
NUMBERS: Final = "f32 f16 bool i8 u8 i16 u16 i32 u32 i64"
CAST: Final = "f32 f16 bool i8 u8 i16 u16 i32 i64"


def _to_whole(op: Op, graph: ModelGraph) -> str:
    made, read = graph.tensor[op.outputs[0]].dtype, kinds_read(op, graph)[0]
    if "float" in read and "int" in made:
        return "floats beyond the range of a whole number become others there"
    if made in ("int8", "uint8", "int16", "uint16", "bool") and "int" in read:
        return "whole numbers that are narrowed become others there"
    return ""


def _accumulating(op: Op, graph: ModelGraph) -> str:
    return "" if op.attributes.get("reduction", "none") == "none" else "reductions are not compared"


def _recurrent(op: Op, graph: ModelGraph) -> str:
    if op.attributes.get("layout", 0):
        return "the layout that has the batch first is not kept there"
    hidden = op.attributes.get("hidden_size", 0)
    kinds = [*op.parameters, *(graph.tensor[name].type for name in op.inputs)]
    peeps = isinstance(hidden, int) and any(len(one.shape) == 2 and one.shape[1] == 3 * hidden for one in kinds)
    return "peepholes are left out there" if peeps else ""


def _training(op: Op, graph: ModelGraph) -> str:
    return "training is not compared" if op.attributes.get("training_mode", 0) or len(op.outputs) > 1 else ""


def _stretched(op: Op, graph: ModelGraph) -> str:
    odd = op.attributes.get("exclude_outside", 0) or op.attributes.get("antialias", 0)
    return "antialiasing and what excludes the outside differ" if odd else ""


OPENVINO: Final = Trust(
    Row(
        "Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape Slice SpaceToDepth "
        "Split Squeeze Tile Transpose Unsqueeze Where",
        NUMBERS,
    ),
    Row("Dropout", FLOATS, unless=asked, but="a constant ratio"),
    Row("Pad", "f32 f16 bool i8 u8 i32", unless=on_axes, but="constant pads, of all axes"),
    Row("Scatter ScatterElements ScatterND", "f32 f16 i8 u8 i16 u16 i32", unless=_accumulating, but="no reduction"),
    Row("Add Sub Mul", "f32 f16 i32"),
    Row(
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
        "LeakyRelu Log Mean Mish Mod Neg PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh "
        "Softplus Softsign Sqrt Sum Swish Tan Tanh ThresholdedRelu",
        FLOATS,
    ),
    Row(
        "AveragePool Conv ConvTranspose CumSum Einsum Gemm GlobalAveragePool GlobalMaxPool GridSample "
        "GroupNormalization InstanceNormalization LayerNormalization LogSoftmax LpNormalization LpPool MatMul "
        "MeanVarianceNormalization RMSNormalization ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Softmax Trilu Upsample",
        FLOATS,
    ),
    Row("LRN", "f32"),
    Row("Clip Max Min", "f32 f16 i8 u8 i32"),
    Row("MaxPool", "f32 f16 i8 u8"),
    Row("BatchNormalization", FLOATS, unless=_training, but="not in training"),
    Row("GRU LSTM RNN", FLOATS, unless=_recurrent, but="no peepholes, sequence first"),
    Row("Resize", FLOATS, unless=_stretched, but="no antialiasing, nothing excluded"),
    Row("ArgMax ArgMin", FLOATS, "i64"),
    Row("TopK", FLOATS, "f32 f16 i64"),
    Row("Equal Greater GreaterOrEqual Less LessOrEqual", NUMBERS, "bool"),
    Row("IsInf IsNaN", FLOATS, "bool"),
    Row("And Or Xor Not", "bool"),
    Row("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", "i8 u8 i16 u16 i32"),
    Row("OneHot", "i32 i64", "f32 f16 i32"),
    Row("Cast", CAST, unless=_to_whole, but="no float to whole number, nothing to fewer bits"),
    Row("QuantizeLinear", FLOATS, "i8 u8"),
    Row("DequantizeLinear", "i8 u8", FLOATS),
    Row("DynamicQuantizeLinear", "f32", "u8 f32"),
    Row("QLinearConv QLinearMatMul", "i8 u8"),
    Row("ConvInteger MatMulInteger", "i8 u8", "i32"),
)
