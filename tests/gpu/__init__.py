"""What is checked on a machine with a real GPU: `ci/gpu` runs it, docs/gpu.md explains it.

A group is a module with `ABOUT`, a sentence, and `CASES`; `gpu.main.GROUPS` lists them. Nothing here needs more than
Python's standard library; the workloads need what they are about.
"""
