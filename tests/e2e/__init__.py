"""The main job from end to end: real runtimes, the real planner, real sockets."""
