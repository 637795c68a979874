"""Benchmarks: speed as ratios within one run. Each is ``python -m benchmarks.NAME``; ``--help`` has an example.

A device:
  engine      ours beside ONNX Runtime and OpenVINO, network by network
  dispatch    what the engine adds to the work itself
  session     what a session takes to start and at each run; how many networks it runs right
  main_job    profiling from nothing, and what a second start asks of the planner
  reading     what a network takes to read, hash, merge, sign and cut
  gpu         a GPU that runs several ops at once; ``pair``: a small GPU and the cores beside it
  splits      ops computed in parts: on phones' figures, this machine (``split_machine``), a pair
Plans:
  phones      measured phones, HOPE's figures (``figures``), the literature's methods (``mulayer``)
  planning    subproblems, bounds, three processors, synthetic profiles
  machine     machines beyond HOPE's: groups of cores, shares of a GPU, sixty processors
  tiers       device, edge and cloud, beside D3's HPA, DADS and Neurosurgeon
  prediction  latencies that nobody measured; ``at_once``: on this machine
The planner:
  service     requests, kills, uploads, lies, a fleet's first plans
  attack      one device against all others
  fleet       releases, reports, a week of a million devices
  console     the fleet in a browser

``page`` makes ``docs/figures.md`` of what they wrote into ``results``. ``many_cores.sh`` and ``gpu.sh`` run them on
machines without a network. What several share: ``cli``, ``results``, ``profiles``, ``traces``, ``streams``.
"""
