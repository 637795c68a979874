"""torch as a runtime: GPUs on which a plan's ops overlap, one CUDA graph per segment; the CPU by the same code.

From op to launch: ``node`` reads an ONNX op, ``table`` gives its torch call, ``fold`` and ``kernel`` make one function
of a super-op, ``schedule`` puts functions on streams with events and frees, ``driver`` records that into a graph,
``executable`` binds it to buffers (``memory``). ``shares`` measures how much of a GPU a function takes, ``green`` cuts
a GPU into parts, ``precision`` says what float32 is computed in. Nothing here is imported unless it is asked for.
"""
