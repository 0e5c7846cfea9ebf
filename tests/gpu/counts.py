"""Counts of driver calls from two witnesses, and their comparison.

The library's trace says what it forwarded; CUPTI, inside the driver, says what arrived. Where both agree, symbol by
symbol and process by process, nothing went round the library and nothing was counted twice.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gpu.machine import ROOT

TABLE = ROOT / "src/table/hooks.tsv"

# Launches, graphs, copies, sets, allocations and frees: in these classes every difference is a failure. In the others
# (look-ups before cuInit, modules unloaded after CUPTI is gone, …) the witnesses differ by nature; they are reported.
JUDGED = (
    "linear",
    "managed",
    "arrays",
    "vmm",
    "pools",
    "graphs",
    "graph-edits",
    "imports",
    "multicast",
    "launches",
    "graph-launches",
    "copies",
)

PAGE = struct.Struct("<8sIIIIII")
SLOT = struct.Struct("<Q64s")


@dataclass(frozen=True)
class Page:
    """One process's file of CUPTI counts."""

    counts: Counter
    known: frozenset[str]
    result: int


@dataclass
class Comparison:
    """What the two witnesses of one run say."""

    differences: list[dict] = field(default_factory=list)  # judged rows
    others: list[dict] = field(default_factory=list)  # rows of the remaining classes
    unseen: Counter = field(default_factory=Counter)  # traced rows that this CUPTI has no name for
    not_hooked: Counter = field(default_factory=Counter)  # calls that CUPTI saw and the table does not have
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    processes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def judged_calls(self) -> int:
        return sum(totals["cupti"] for name, totals in self.classes.items() if name in JUDGED)

    def figures(self) -> dict:
        return {
            "processes": self.processes,
            "judged_calls": self.judged_calls,
            "classes": self.classes,
            "differences": self.differences,
            "differences_not_judged": self.others,
            "unknown_to_cupti": dict(self.unseen),
            "not_hooked": dict(self.not_hooked.most_common(40)),
        }


def read_table(path: Path = TABLE) -> dict[str, str]:
    """The hooked symbols of libcuda, each with its class."""
    table: dict[str, str] = {}
    section = library = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        heading = re.match(r"\[([\w-]+)\] (?:([\w.-]+):)?", line)
        if heading:
            section, library = heading.group(1), heading.group(2) or "libcuda"
        elif line.strip() and not line.startswith("#"):
            symbol = line.split("\t")[0].strip()
            if not section:
                raise ValueError(f"{path}:{number}: {symbol} comes before any [class]")
            if library == "libcuda":
                table[symbol] = section
    return table


def read_trace(path: Path) -> dict[int, Counter]:
    """Counts by process and symbol. A process may have several lines for a symbol; they add up."""
    counts: dict[int, Counter] = {}
    if not path.exists():
        return counts
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 3 or not words[0].isdigit() or not words[2].isdigit():
            raise ValueError(f"{path}:{number}: not `PID SYMBOL COUNT`: {line!r}")
        counts.setdefault(int(words[0]), Counter())[words[1]] += int(words[2])
    return counts


def read_page(data: bytes) -> tuple[int, Page]:
    """A file that tests/gpu/programs/cupti_count.c wrote."""
    magic, pid, slots, _, result, _, _ = PAGE.unpack_from(data)
    if magic != b"cupti  1" or len(data) != PAGE.size + slots * SLOT.size:
        raise ValueError("not a file of counts")
    counts: Counter = Counter()
    known = set()
    for slot in range(slots):
        count, raw = SLOT.unpack_from(data, PAGE.size + slot * SLOT.size)
        name = raw.split(b"\0", 1)[0].decode()
        if name:
            known.add(name)
        if count:
            counts[name or f"callback {slot}"] += count
    return pid, Page(counts, frozenset(known), result)


def read_pages(directory: Path) -> dict[int, Page]:
    pages: dict[int, Page] = {}
    for path in sorted(directory.glob("*.counts")):
        try:
            pid, page = read_page(path.read_bytes())
        except (ValueError, struct.error) as error:
            raise ValueError(f"{path}: {error}") from error
        pages[pid] = page
    return pages


def compare(
    table: dict[str, str], trace: dict[int, Counter], pages: dict[int, Page], *, children_fail: bool = False
) -> Comparison:
    """Holds the two counts against each other.

    `children_fail`: processes that CUPTI is not in are told, not judged. The children of a process with CUDA are such:
    the driver refuses what they ask for before CUPTI hears of it.
    """
    found = Comparison(processes=len(set(trace) | set(pages)))
    if not pages:
        found.problems.append("CUPTI wrote no counts: the driver did not load the injected library")
        return found
    known = frozenset().union(*(page.known for page in pages.values()))
    for pid, page in pages.items():
        if page.result:
            found.problems.append(f"CUPTI did not count in process {pid}: result {page.result} of subscribing")
        found.not_hooked.update({name: n for name, n in page.counts.items() if name not in table})
    for pid in sorted(set(trace) | set(pages)):
        ours = trace.get(pid, Counter())
        theirs = pages[pid].counts if pid in pages else Counter()
        for symbol in sorted(set(ours) | set(theirs)):
            section = table.get(symbol)
            if section is None:
                if symbol in ours and symbol.startswith("cu"):
                    found.problems.append(f"the trace has {symbol}, which is no row of the table")
                continue
            if symbol not in known:
                found.unseen[symbol] += ours[symbol]
                continue
            totals = found.classes.setdefault(section, {"trace": 0, "cupti": 0})
            totals["trace"] += ours[symbol]
            totals["cupti"] += theirs[symbol]
            if ours[symbol] != theirs[symbol]:
                row = {"pid": pid, "symbol": symbol, "class": section}
                row.update(trace=ours[symbol], cupti=theirs[symbol])
                judged = section in JUDGED and (pid in pages or not children_fail)
                (found.differences if judged else found.others).append(row)
    return found


def describe(rows: list[dict], most: int = 12) -> str:
    """Rows for a person: the symbol, and both counts."""
    words = [f"{row['symbol']} (pid {row['pid']}): trace {row['trace']}, CUPTI {row['cupti']}" for row in rows[:most]]
    return "; ".join(words) + (f"; and {len(rows) - most} more" if len(rows) > most else "")
