"""Compares what look-ups of driver functions answer without the shim and with it.

usage: lookups.py questions DRIVER                    for sweep.c: what there is to ask the driver in that directory
       lookups.py compare NAME DRIVER BARE PRELOADED LEAST
                                                      two recordings, by sweep.c or recorder.c, on that driver, of so
                                                      many look-ups at least
       lookups.py self-test

With the shim, a look-up must have the same answer, but for functions that are rows of src/table/hooks.tsv: those must
come back as the shim's function of that very name. The driver's own symbol table tells which names a pointer has.
"""

import csv
import ctypes
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SURFACE = ROOT / "cuda-stubs/world/surface"
SHIM = "libration.so"
DRIVER, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
NONSENSE = ["cuNope", "cuMemAlloc_v9", "nvmlNope", "cu", "cudaMalloc"]
SHOWN = 1  # of what is wrong in the same way


def table(name):
    lines = [line for line in (SURFACE / name).read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t"))


def hooked():
    """The rows of the hook table, by library."""
    rows, library = defaultdict(set), None
    for line in (ROOT / "src/table/hooks.tsv").read_text().splitlines():
        if line.startswith("["):
            library = line.split("] ", 1)[1].split(":")[0]
        elif line.strip() and not line.startswith("#"):
            rows[library].add(line.split("\t")[0])
    return {DRIVER: rows["libcuda"], NVML: rows["libnvidia-ml"]}


def exports(library):
    """The functions of a library, and where in it they begin."""
    told = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    found = {}
    for line in told.stdout.splitlines():
        place, kind, name = line.split()
        if kind in "TtWwi":
            found[name.split("@")[0]] = int(place, 16)
    assert found, f"{library} exports nothing"
    return found


# ------------------------------------------------------------------------------------------------------- questions


def newest(driver):
    """The CUDA version of a driver, as it says itself."""
    version = ctypes.c_int()
    result = ctypes.CDLL(driver / DRIVER).cuDriverGetVersion(ctypes.byref(version))
    assert result == 0 and version.value > 10000, (driver, result, version)
    return version.value


def questions(driver):
    names = set(NONSENSE) | {row["symbol"] for row in table("driver.tsv") + table("nvml.tsv")}
    for library, rows in hooked().items():
        names |= rows | {name for name in exports(driver / library) if name.startswith(("cu", "nvml"))}
    for name in sorted(names):
        for place in (DRIVER, NVML, "dependent", "default", "next"):
            yield "dlsym", place, name
        yield "dlvsym", DRIVER, name, "GLIBC_2.2.5"

    version, since = newest(driver), defaultdict(set)
    for row in table("resolve.tsv"):
        since[row["name"]] |= {int(row["since"]), int(row["since"]) - 1}
    for name in sorted(since):
        for asked in sorted(since[name] | {version, version + 10, 13040, 0, -1}):
            for flags in (0, 1, 2, 3):
                yield "get", name, asked, flags
        yield "get", name, version, 4
    for name in sorted((names - since.keys()) | {"(empty)"}):
        for asked in (version, 0):
            for flags in (0, 2):
                yield "get", name, asked, flags


# -------------------------------------------------------------------------------------------------------- comparing


class Driver:
    """What there is to know about a driver to judge an answer."""

    def __init__(self, symbols, rows):
        self.rows = rows
        self.names = {library: defaultdict(set) for library in symbols}
        for library, places in symbols.items():
            for name, place in places.items():
                self.names[library][place].add(name)

    def verdict(self, question, bare, preloaded):
        """'same' or 'ours', or else what is wrong."""
        library, _, place = bare.partition(":")
        known = library in self.names
        names = self.names[library][int(place.split(":")[1], 16)] if known else set()
        rows = names & self.rows.get(library, set())
        if not rows:
            return "same" if preloaded == bare else "should have the same answer"
        if preloaded == bare:
            return "is a row, and goes past the shim"
        where, symbol, *_ = [*preloaded.split(":"), ""]
        if where != SHIM:
            return "is a row, and should be answered by the shim's function"
        if symbol not in rows or (question[0] in ("dlsym", "dlvsym") and symbol != question[2]):
            return "is answered by another row"
        return "ours"


def split(line):
    """A look-up and its answer. The answer is the last word, what was returned belongs to the question."""
    *question, answer = line.split("\t")
    return tuple(question), answer


def compare(driver, bare, preloaded):
    """Counts by verdict; and what is wrong, by the way in which it is."""
    counts, wrong = Counter(), defaultdict(list)
    if len(bare) != len(preloaded):
        wrong["another number of look-ups"].append(f"{len(bare)} without the shim, {len(preloaded)} with it")
    for plain, with_shim in zip(bare, preloaded):
        (question, first), (again, second) = split(plain), split(with_shim)
        kind = f"{question[0]} {question[1]}" if question[0].startswith("dl") else question[0]
        if question != again:
            way = "another result, status or error" if question[:3] == again[:3] else "another look-up"
            differs = f"{' '.join(question)} -> {first} without the shim, {' '.join(again)} -> {second} with it"
            wrong[f"{kind}: {way}"].append(differs)
            continue
        verdict = driver.verdict(question, first, second)
        counts[verdict] += 1
        if verdict not in ("same", "ours"):
            wrong[f"{kind}: {verdict}"].append(f"{' '.join(question)}: {first} without the shim, {second} with it")
    return counts, wrong


def lines(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main(name, driver, bare, preloaded, least):
    driver = Path(driver)
    symbols = {library: exports(driver / library) for library in (DRIVER, NVML)}
    bare, preloaded = lines(bare), lines(preloaded)
    counts, wrong = compare(Driver(symbols, hooked()), bare, preloaded)
    if len(bare) < int(least):
        wrong["hardly a look-up"].append(f"{len(bare)}, and {least} were to be expected")
    print(f"{name}\t{counts['same'] + counts['ours']}\t{counts['ours']}\t{sum(map(len, wrong.values()))}")
    for way, found in wrong.items():
        title = f"  {name}: {len(found)} x {way}".replace("\t", ", ")
        print(title, *found[:SHOWN], sep="\n    ", file=sys.stderr)
    return 1 if wrong else 0


# -------------------------------------------------------------------------------------------------------- self-test


def self_test():
    """Each way for an answer to be wrong is found, and nothing else is."""
    symbols = {DRIVER: {"cuRow": 0x10, "cuRow_v2": 0x20, "cuOther": 0x30, "cuAlias": 0x20}, NVML: {"nvmlRow": 0x10}}
    driver = Driver(symbols, {DRIVER: {"cuRow", "cuRow_v2"}, NVML: {"nvmlRow"}})
    row, second, other = (f"{DRIVER}:{name}:{symbols[DRIVER][name]:x}" for name in ("cuRow", "cuRow_v2", "cuOther"))
    good = [
        (f"dlsym\t{DRIVER}\tcuRow\t{row}", f"dlsym\t{DRIVER}\tcuRow\t{SHIM}:cuRow:99"),
        (f"get2\tcuRow\t12000\t0\t0\t0\t{second}", f"get2\tcuRow\t12000\t0\t0\t0\t{SHIM}:cuRow_v2:9a"),
        (f"get2\tcuRow\t12000\t0\t0\t0\t{DRIVER}:cuAlias:20", f"get2\tcuRow\t12000\t0\t0\t0\t{SHIM}:cuRow_v2:9a"),
        (f"dlsym\t{NVML}\tnvmlRow\t{NVML}:nvmlRow:10", f"dlsym\t{NVML}\tnvmlRow\t{SHIM}:nvmlRow:9b"),
        (f"dlsym\t{DRIVER}\tcuOther\t{other}",) * 2,
        (f"dlsym\t{DRIVER}\tcuNope\tnull",) * 2,
        (f"get2\tcuHidden\t0\t0\t0\t0\t{DRIVER}:cuOther+:35",) * 2,
        ("get1\tcuNope\t0\t0\t500\t-\tuntouched",) * 2,
    ]
    counts, wrong = compare(driver, [a for a, _ in good], [b for _, b in good])
    assert not wrong and counts == {"same": 4, "ours": 4}, (counts, wrong)
    bad = [
        (f"dlsym\t{DRIVER}\tcuRow\t{row}",) * 2,  # past the shim
        (f"dlsym\t{DRIVER}\tcuRow\t{row}", f"dlsym\t{DRIVER}\tcuRow\t{SHIM}:cuRow_v2:99"),  # another row
        (f"get2\tcuRow\t2000\t0\t0\t0\t{row}", f"get2\tcuRow\t2000\t0\t0\t0\t{SHIM}:cuRow_v2:99"),  # another version
        (f"get2\tcuRow\t2000\t0\t0\t0\t{row}", f"get2\tcuRow\t2000\t0\t0\t0\t{SHIM}:cuRow+:9f"),  # into a function
        (f"get2\tcuRow\t2000\t0\t0\t0\t{row}", "get2\tcuRow\t2000\t0\t0\t0\tnull"),
        (f"dlsym\t{DRIVER}\tcuOther\t{other}", f"dlsym\t{DRIVER}\tcuOther\t{SHIM}:cuOther:99"),  # no row
        (f"dlsym\t{DRIVER}\tcuNope\tnull", f"dlsym\t{DRIVER}\tcuNope\t{SHIM}:cuNope:99"),  # the driver lacks it
        ("get1\tcuNope\t0\t0\t500\t-\tuntouched", "get1\tcuNope\t0\t0\t500\t-\tnull"),
        ("get2\tcuNope\t0\t0\t0\t1\tnull", "get2\tcuNope\t0\t0\t0\t2\tnull"),  # another status
        ("get2\tcuNope\t0\t0\t0\t1\tnull", "get2\tcuNope\t0\t0\t500\t1\tnull"),  # another result
    ]
    for plain, with_shim in bad:
        _, wrong = compare(driver, [plain], [with_shim])
        assert len(wrong) == 1, (plain, with_shim, wrong)
    plain = [a for a, _ in good]
    assert compare(driver, plain, [b for _, b in good][:-1])[1], "a look-up that is missing"
    print(f"{len(bad) + 1} ways for a look-up to go wrong are found")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:] or [""]
    if what == "questions":
        print("\n".join("\t".join(map(str, question)) for question in questions(Path(arguments[0]))))
    elif what == "compare":
        sys.exit(main(*arguments))
    elif what == "self-test":
        self_test()
    else:
        sys.exit(__doc__)
