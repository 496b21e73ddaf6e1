"""Fault campaigns: break things on purpose, count what was lost. See docs/reliability.md.

One module per kind of fault; each has `campaign(count, seed, say) -> Tally`. Run one with
`python -m faults kill --count 25`, all at full count with `make faults`.
"""
