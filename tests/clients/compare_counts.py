"""Compares the shim's trace of a client with the simulated driver's own counts, process by process, symbol by symbol.

usage: compare_counts.py NAME DIRECTORY [--may-be-idle]
       compare_counts.py self-test

DIRECTORY holds the trace (RATION_TRACE) and one record (ration-sim record) or several, as *.json. For every process
that either of them knows, and every row of src/table/hooks.tsv, both must have counted the same number of calls. Prints
a line for the table: name, processes, symbols, calls, differences.

A client that makes no hooked call proves nothing, and fails; with --may-be-idle, because it may not be installed, it
passes.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = 20  # of the differences


class Wrong(Exception):
    """What was given cannot be what it says it is."""


def hooked():
    """The symbols that the shim counts: all rows but those that it takes from libc."""
    rows, counted = set(), False
    for line in (ROOT / "src/table/hooks.tsv").read_text().splitlines():
        if line.startswith("["):
            counted = not line.split("] ", 1)[1].startswith("libc:")
        elif counted and line.strip() and not line.startswith("#"):
            rows.add(line.split("\t")[0])
    return rows


def read_trace(text, rows):
    """Calls by process and symbol. A process may have written several sections; they add up."""
    counts = defaultdict(Counter)
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        words = line.split(" ")
        if len(words) != 3 or not (words[0].isdigit() and words[2].isdigit()):
            raise Wrong(f"the trace has {line!r}, which is not PID SYMBOL COUNT")
        if words[1] not in rows:
            raise Wrong(f"the trace has {line!r}, and there is no such row")
        counts[int(words[0])][words[1]] += int(words[2])
    return counts


def read_record(records, rows):
    """The same, as the simulated driver and NVML counted. A process that uses both is in a record twice."""
    counts = defaultdict(Counter)
    for record in records:
        for process in record["processes"]:
            calls = {symbol: count for symbol, count in process["calls"].items() if symbol in rows}
            if calls:
                counts[process["pid"]].update(calls)
    return counts


def differences(trace, record):
    """In words, for every process and symbol of which the two do not say the same."""
    found = []
    for pid in sorted(trace.keys() | record.keys()):
        for symbol in sorted(trace[pid].keys() | record[pid].keys()):
            ours, theirs = trace[pid][symbol], record[pid][symbol]
            if ours != theirs:
                found.append(f"process {pid}: {symbol}: {ours} in the trace, {theirs} in the driver's record")
    return found


def notices_changes(trace, record):
    """Whether the comparison would have seen any one count that is off, or any process that is missing."""
    for pid in list(trace):
        for symbol in trace[pid]:
            trace[pid][symbol] += 1
            assert len(differences(trace, record)) == 1, (pid, symbol)
            trace[pid][symbol] -= 1
        kept = trace.pop(pid)
        assert len(differences(trace, record)) == len(kept), pid
        trace[pid] = kept
    assert not differences(trace, record)


def main(name, directory, *options):
    rows, directory = hooked(), Path(directory)
    trace = directory / "trace"
    trace = read_trace(trace.read_text() if trace.exists() else "", rows)
    record = read_record([json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))], rows)
    wrong = differences(trace, record)
    if not wrong:
        notices_changes(trace, record)
    symbols = {symbol for counts in record.values() for symbol in counts}
    calls = sum(sum(counts.values()) for counts in record.values())
    print(f"{name}\t{len(record)}\t{len(symbols)}\t{calls}\t{len(wrong)}")
    for line in wrong[:SHOWN]:
        print(f"  {line}", file=sys.stderr)
    if len(wrong) > SHOWN:
        print(f"  and {len(wrong) - SHOWN} more", file=sys.stderr)
    if not calls and "--may-be-idle" not in options:
        print(f"  {name} made no call that is hooked, so that nothing was compared", file=sys.stderr)
        return 1
    return 1 if wrong else 0


def self_test():
    """The tool finds what it is for: counts that differ, processes that only one side knows, what is no trace."""
    rows = {"cuA", "cuB", "nvmlC"}
    process = {"pid": 7, "calls": {"cuA": 2, "cuB": 1, "cuNotHooked": 5}}
    records = [
        {"processes": [process, {"pid": 9, "calls": {"cuNotHooked": 1}}]},
        {"processes": [{"pid": 7, "calls": {"nvmlC": 3}}, {"pid": 8, "calls": {"cuA": 1}}]},
    ]
    good = "# ration trace 1: pid 7 /bin/x\n7 cuA 1\n7 cuB 1\n7 nvmlC 3\n# and another section\n8 cuA 1\n7 cuA 1\n"

    def told(text):
        return differences(read_trace(text, rows), read_record(records, rows))

    assert told(good) == [], told(good)
    notices_changes(read_trace(good, rows), read_record(records, rows))
    doctored = {
        "a call too many": good + "7 cuB 1\n",
        "a call too few": good.replace("nvmlC 3", "nvmlC 2"),
        "a symbol that is missing": good.replace("7 cuB 1\n", ""),
        "a process that is missing": good.replace("8 cuA 1\n", ""),
        "a process that the driver does not know": good + "9 cuA 1\n",
        "another process's call": good.replace("8 cuA 1", "9 cuA 1"),
        "nothing": "",
    }
    for what, text in doctored.items():
        assert told(text), what
    for text in ("7 cuA\n", "7 cuA two\n", "7 cuD 1\n", "x cuA 1\n", "7 cuA -1\n", "7  cuA 1\n"):
        try:
            told(text)
        except Wrong:
            continue
        raise AssertionError(f"{text!r} was taken for a trace")
    assert {"cuInit", "cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"} < hooked() and "dlsym" not in hooked()
    print(f"{len(doctored)} doctored traces are found out, and 6 that are none")


if __name__ == "__main__":
    if sys.argv[1:] == ["self-test"]:
        self_test()
    elif len(sys.argv) >= 3:
        sys.exit(main(*sys.argv[1:]))
    else:
        sys.exit(__doc__)
