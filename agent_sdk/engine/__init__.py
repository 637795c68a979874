"""The engine: a plan becomes per-lane programs, threads run them, tensors are cached where they are read.

``build_program(plan, model, device.processors)`` → ``Executor(program, device)`` → ``run(inputs)``.
"""

from agent_sdk.engine.build import build_program
from agent_sdk.engine.device import Device
from agent_sdk.engine.executor import Executor
from agent_sdk.engine.program import Copy, Event, Move, Program, ProgramSegment, Work
