"""What runs where, when and why: as plain data, as a page for a browser, as a trace for Perfetto."""

from agent_sdk.explain.explanation import Bar, ExplainedOp, Explanation, measured_bars, planned_bars
from agent_sdk.explain.page import to_html
from agent_sdk.explain.perfetto import to_perfetto
from agent_sdk.explain.reasons import explain, explain_whole
