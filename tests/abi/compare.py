#!/usr/bin/env python3
"""Hold include/cuda_abi.h and include/nvml_abi.h against NVIDIA's own headers.

    compare.py --ours include [--cuda-include DIR] [--nvml-include DIR]

DIR is a directory with cuda.h or nvml.h, for instance from the wheels nvidia-cuda-runtime and
nvidia-nvml-dev. Only gcc and the Python standard library are needed.

Both headers are read by the small parser below, to learn which names each declares. What is
compared is not the text but what gcc makes of it: one program per side prints the same list of
facts, restricted to names that both sides have:

    value NAME           an enumerator or a macro
    sizeof/alignof TYPE
    offset/size T.field  every field, nested and anonymous ones included
    type ...             whether the type that our header spells for a typedef, a field or a
                         function is compatible with what the header under test declares
                         (__builtin_types_compatible_p); both use the same typedef names, and
                         what those mean is compared by the facts above

A _ptsz or _ptds symbol in NVIDIA's header is checked against our prototype without that ending.

Differences are expected between versions; those are in known-differences.txt, with the versions
they hold for. Anything not listed there, and anything listed that does not occur, is an error
(exit 1). --complete also makes it an error if their header declares something ours lacks.
"""

import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaVDPAU.h", "nvml.h",
           "cuda_abi.h", "nvml_abi.h")
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\w+|\.\.\.|[^\s\w]')
KEYWORDS = set("""void char short int long float double signed unsigned const volatile struct union
    enum size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t""".split())
STREAM_SUFFIX = re.compile(r"_pt[ds][sz]$")
TYPE_NAME = re.compile(r"(?:cuuint\d+_t|CU[a-z]\w*|CUDA_[A-Z]\w*|nvml[A-Z]\w*_t)$")
KINDS = ("since", "until", "differs", "elsewhere", "omitted")


class Failure(Exception):
    pass


# -- Reading C ----------------------------------------------------------------------------------


class Header:
    """What one header declares, by name."""

    def __init__(self):
        self.macros = {}      # name -> replacement text
        self.constants = {}   # enumerator -> name of its enum
        self.enums = []       # typedef names of enums
        self.records = {}     # typedef name -> {field path: spelled type, or None if it has a body}
        self.typedefs = {}    # typedef name -> spelled type
        self.functions = {}   # name -> spelled type
        self.tags = set()

    def types(self):
        return set(self.enums) | set(self.records) | set(self.typedefs)

    def names(self):
        return self.types() | set(self.constants) | set(self.macros) | set(self.functions)


class Parser:
    """Top-level declarations of a preprocessed C header. No expressions, no bit-fields."""

    def __init__(self, text):
        text = re.sub(r"\b(?:_Static_assert|static_assert)\s*\(", "__static_assert__ (", text)
        self.toks = TOKEN.findall(text)
        self.i = 0
        self.out = Header()
        self.records_by_tag = {}

    def peek(self):
        return self.toks[self.i] if self.i < len(self.toks) else None

    def next(self):
        tok = self.peek()
        if tok is None:
            raise Failure("unexpected end of header")
        self.i += 1
        return tok

    def expect(self, want):
        got = self.next()
        if got != want:
            context = " ".join(self.toks[max(0, self.i - 12):self.i + 4])
            raise Failure(f"cannot read header: expected {want!r} at: {context}")

    def balanced(self, opening, closing):
        """Tokens between a pair of brackets, the opening one being next."""
        self.expect(opening)
        depth, start = 1, self.i
        while depth:
            tok = self.next()
            depth += (tok == opening) - (tok == closing)
        return self.toks[start:self.i - 1]

    def skip_attributes(self):
        while self.peek() in ("__attribute__", "_Alignas", "alignas", "__declspec"):
            self.next()
            self.balanced("(", ")")

    def specifiers(self):
        """Type specifiers: (spelling, fields of a record body or None, enumerators or None)."""
        words, fields, enumerators = [], None, None
        while True:
            self.skip_attributes()
            tok = self.peek()
            if tok in ("struct", "union", "enum"):
                self.next()
                self.skip_attributes()
                tag = None
                if re.match(r"[A-Za-z_]", self.peek()):
                    tag = self.next()
                    self.out.tags.add(tag)
                if self.peek() == "{":
                    if tok == "enum":
                        enumerators = self.enumerators()
                    else:
                        fields = self.fields()
                        if tag:
                            self.records_by_tag[tag] = fields
                elif tag in self.records_by_tag:
                    fields = self.records_by_tag[tag]
                words += [tok] + ([tag] if tag else [])
            elif tok in ("typedef", "extern", "static", "inline", "__inline", "__extension__"):
                self.next()
            elif tok in ("const", "volatile") or self.more(words, tok):
                words.append(self.next())
            else:
                return " ".join(words), fields, enumerators

    @staticmethod
    def more(words, tok):
        """Whether `tok` still belongs to the specifiers that began with `words`."""
        if not re.match(r"[A-Za-z_]", tok):
            return False
        base = [w for w in words if w not in ("const", "volatile")]
        if not base:
            return True
        builtin = KEYWORDS - {"struct", "union", "enum", "size_t"}
        return tok in builtin and all(w in builtin for w in base)

    def enumerators(self):
        names, first = [], True
        for tok in self.balanced("{", "}"):
            if first:
                names.append(tok)
            first = tok == ","
        return names

    def declarator(self):
        """One declarator: (name or None, its tokens with the name taken out)."""
        toks, name, depth = [], None, 0
        while True:
            self.skip_attributes()
            tok = self.peek()
            if depth == 0 and tok in (";", ",", ")", "{"):
                return name, toks
            if tok == ":" and depth == 0:
                raise Failure(f"bit-field {name}: not supported")
            self.next()
            depth += (tok in "([") - (tok in ")]")
            if name is None and re.match(r"[A-Za-z_]", tok) and tok not in KEYWORDS:
                name = tok
            else:
                toks.append(tok)

    def fields(self):
        self.expect("{")
        found = {}
        while self.peek() != "}":
            if self.peek() == "__static_assert__":
                self.static_assert()
                continue
            spec, body, _ = self.specifiers()
            if self.peek() == ";":  # anonymous member
                found.update(body or {})
                self.next()
                continue
            while True:
                name, rest = self.declarator()
                if body is not None and "*" not in rest:
                    found[name] = None
                    prefix = name + "".join("[0]" for tok in rest if tok == "[")
                    for sub, spelled in body.items():
                        found[f"{prefix}.{sub}"] = spelled
                else:
                    found[name] = f"{spec} {' '.join(rest)}".strip()
                if self.next() == ";":
                    break
        self.next()
        return found

    def static_assert(self):
        self.next()
        self.balanced("(", ")")
        self.expect(";")

    def run(self):
        out = self.out
        while self.peek() is not None:
            if self.peek() == ";":
                self.next()
                continue
            if self.peek() == "__static_assert__":
                self.static_assert()
                continue
            is_typedef = "typedef" in self.toks[self.i:self.i + 2]
            spec, body, enumerators = self.specifiers()
            if self.peek() == ";":
                self.next()
                continue
            while True:
                name, rest = self.declarator()
                spelled = f"{spec} {' '.join(rest)}".strip()
                if not is_typedef:
                    if "(" in rest:
                        out.functions[name] = spelled
                elif enumerators is not None and not rest:
                    out.enums.append(name)
                    for constant in enumerators:
                        out.constants[constant] = name
                elif body is not None and not rest:
                    out.records[name] = body
                else:
                    out.typedefs[name] = spelled
                if self.peek() == "{":  # an inline function's body
                    self.balanced("{", "}")
                    break
                if self.next() == ";":
                    break
        return out


def gcc(args, cc):
    done = subprocess.run([cc] + args, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"{cc} {' '.join(args)} failed:\n{done.stderr[:4000]}")
    return done.stdout


def read(include_text, flags, cc, tmp, prefixes):
    """Parse what `include_text` declares under `flags`; names outside `prefixes` are dropped."""
    path = os.path.join(tmp, "read.c")
    with open(path, "w") as f:
        f.write(include_text)
    # Declarations of system headers are dropped by their line markers.
    keep, lines = True, []
    for line in gcc(["-E", "-std=c11"] + flags + [path], cc).splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            keep = os.path.basename(marker[1]) in HEADERS
        elif keep and not line.startswith("#"):
            lines.append(line)
    header = Parser("\n".join(lines)).run()
    for line in gcc(["-dM", "-E", "-std=c11"] + flags + [path], cc).splitlines():
        define = re.match(r"#define (\w+) (\S.*)", line)
        if define and re.match(prefixes, define[1]):
            header.macros[define[1]] = define[2]
    return header


# -- Facts --------------------------------------------------------------------------------------


def spelled_in(header, spelled):
    """Whether every type name in `spelled` is known to `header` (parameter names do no harm)."""
    toks = TOKEN.findall(spelled)
    for before, tok in zip([None] + toks, toks):
        if before in ("struct", "union", "enum"):
            continue  # an unknown tag makes an incompatible type, which is what we want to see
        if TYPE_NAME.match(tok) and tok not in header.types():
            return False
    return True


def facts(ours, theirs):
    """[(key, C for our side, C for theirs)] for what is in both headers, then what is only in ours:
    first what stands for itself, then what is gone along with its type."""
    found, missing, covered = [], [], []
    their_names = theirs.names()

    def fact(key, expression, in_theirs=None):
        found.append((key, expression, in_theirs or expression))

    def type_fact(key, declared, spelled, in_theirs=None):
        if spelled_in(theirs, spelled):
            fact(f"type {key}", f"__builtin_types_compatible_p({declared}, {spelled})",
                 f"__builtin_types_compatible_p({in_theirs or declared}, {spelled})")

    for name in ours.enums:
        if name in theirs.types():
            fact(f"sizeof {name}", f"sizeof({name})")
        else:
            missing.append(name)
    for name, enum in ours.constants.items():
        if name in their_names:
            fact(f"value {name}", name)
        else:
            (missing if enum in theirs.types() else covered).append(name)
    for name, text in ours.macros.items():
        if name in their_names:
            fact(f"value {name}", name)
        else:
            missing.append(name)
    for name, spelled in ours.typedefs.items():
        if name not in theirs.types():
            missing.append(name)
            continue
        type_fact(name, name, spelled)
        if spelled in ours.records:  # a plain name for a versioned struct
            fact(f"sizeof {name}", f"sizeof({name})")
    for name, fields in ours.records.items():
        if name not in theirs.types():
            missing.append(name)
            covered += [f"{name}.{path}" for path in fields]
            continue
        fact(f"sizeof {name}", f"sizeof({name})")
        fact(f"alignof {name}", f"_Alignof({name})")
        their_fields = record(theirs, name)
        for path, spelled in fields.items():
            if path not in their_fields:
                missing.append(f"{name}.{path}")
                continue
            member = f"(({name} *)0)->{path}"
            fact(f"offset {name}.{path}", f"offsetof({name}, {path})")
            fact(f"size {name}.{path}", f"sizeof({member})")
            if spelled is not None and their_fields[path] is not None:
                type_fact(f"{name}.{path}", f"__typeof__({member})", spelled)
    for name, spelled in ours.functions.items():
        variants = [v for v in (name, name + "_ptsz", name + "_ptds") if v in theirs.functions]
        if not variants:
            missing.append(name)
        for variant in variants:
            if spelled_in(theirs, spelled):
                type_fact(f"{variant}()", f"__typeof__({name})", spelled, f"__typeof__({variant})")
            else:
                missing.append(f"the types of {name}")
    return found, missing, covered


def record(header, name):
    """Fields of a record typedef, through typedefs of it."""
    while name in header.typedefs:
        name = header.typedefs[name]
    return header.records.get(name, {})


def run_facts(include_text, flags, expressions, cc, tmp, label):
    src, exe = os.path.join(tmp, label + ".c"), os.path.join(tmp, label)
    with open(src, "w") as f:
        f.write(include_text)
        f.write("#include <stddef.h>\n#include <stdio.h>\n")
        # A string stands for itself; _Generic picks, and gives the other branch a harmless operand.
        f.write('#define STRING(x) _Generic((x), char *: (x), default: "")\n')
        f.write("#define NUMBER(x) _Generic((x), char *: 0, default: (x))\n")
        f.write("static void out(const char *k, long long n, const char *s)"
                '{ printf("%s\\t%lld%s\\n", k, n, s); }\n')
        f.write("int main(void) {\n")
        for key, expr in expressions:
            text = f"STRING({expr})" if key.startswith("value ") else '""'
            number = f"NUMBER({expr})" if key.startswith("value ") else expr
            f.write(f'out("{key}", (long long)({number}), {text});\n')
        f.write("return 0; }\n")
    gcc(["-std=gnu11", "-w", "-O0"] + flags + ["-o", exe, src], cc)
    lines = subprocess.run([exe], capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split("\t", 1) for line in lines)


# -- Known differences ---------------------------------------------------------------------------


def version_key(text):
    return tuple(int(part) for part in text.split("."))


class Known:
    """The entries of known-differences.txt that hold for one header and version."""

    def __init__(self, path, api, version):
        self.absent, self.optional, self.differs, self.omitted = {}, {}, {}, {}
        now = version_key(version)
        with open(path) as f:
            for number, line in enumerate(f, 1):
                words = line.split("#")[0].split()
                if not words:
                    continue
                try:
                    kind, entry_api, when, *patterns = words
                    if kind == "differs":  # one fact, which has a blank in it
                        patterns = [" ".join(patterns)]
                    if kind not in KINDS or not all(patterns):
                        raise ValueError
                    holds = {
                        "since": lambda: now < version_key(when),
                        "until": lambda: now >= version_key(when),
                    }.get(kind, lambda: self.in_range(when, now))()
                except ValueError:
                    raise Failure(f"{path}:{number}: cannot read: {line.strip()}") from None
                if entry_api != api or not holds:
                    continue
                table = {"since": self.absent, "until": self.absent, "elsewhere": self.optional,
                         "differs": self.differs, "omitted": self.omitted}[kind]
                table.update(dict.fromkeys(patterns, False))

    @staticmethod
    def in_range(when, now):
        """`*`, or `A-B` where either end may be left out; A is included, B is not."""
        if when == "*":
            return True
        low, high = when.split("-")
        return (not low or version_key(low) <= now) and (not high or now < version_key(high))

    @staticmethod
    def match(table, name):
        hit = False
        for pattern in table:
            if pattern == name or fnmatch.fnmatchcase(name, pattern):
                table[pattern] = hit = True
        return hit

    def stale(self):
        for table, what in ((self.absent, "is there after all"), (self.differs, "does not differ"),
                            (self.omitted, "is not something of theirs that we lack")):
            for pattern, used in table.items():
                if not used:
                    yield f"listed as known, but {what}: {pattern}"


# -- The comparison ------------------------------------------------------------------------------

# What CUDA's headers take from OpenGL's and VDPAU's, which need not be installed.
OPENGL = "typedef unsigned int GLenum, GLuint;\n"
VDPAU = """#include <stdint.h>
typedef uint32_t VdpDevice, VdpOutputSurface, VdpVideoSurface;
typedef unsigned int VdpGetProcAddress(VdpDevice, uint32_t, void **);
"""

APIS = {
    # name: (our header, their include text, flags for theirs, prefix of names, version macro)
    "cuda": ("cuda_abi.h",
             "#include <cuda.h>\n"
             "#if __has_include(<cudaProfiler.h>)\n#include <cudaProfiler.h>\n#endif\n"
             "#include <cudaGL.h>\n" + VDPAU + "#include <cudaVDPAU.h>\n",
             ["-D__CUDA_API_VERSION_INTERNAL"], r"CU(?:DA)?_", "CUDA_VERSION"),
    "nvml": ("nvml_abi.h", "#include <nvml.h>\n", ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"],
             r"NVML_|nvml[A-Z]", "NVML_API_VERSION"),
}
# nvml.h states only its major version; unless told, assume the last 12.x and our own 13.0.
NVML_VERSIONS = {12: "12.9", 13: "13.0"}


def compare(api, theirs_dir, version, args):
    ours_dir, cc = args.ours, args.cc
    our_header, their_text, their_flags, prefixes, version_macro = APIS[api]
    our_text = f'#include "{our_header}"\n'
    our_flags, their_flags = ["-I", ours_dir], ["-I", theirs_dir] + their_flags
    for directory, name in ((ours_dir, our_header), (theirs_dir, api + ".h")):
        if not os.path.exists(os.path.join(directory, name)):
            raise Failure(f"no {name} in {directory}")

    with tempfile.TemporaryDirectory(prefix="abi-compare-") as tmp:
        os.mkdir(os.path.join(tmp, "GL"))
        with open(os.path.join(tmp, "GL", "gl.h"), "w") as f:
            f.write(OPENGL)
        their_flags += ["-I", tmp]
        ours = read(our_text, our_flags, cc, tmp, prefixes)
        theirs = read(their_text, their_flags, cc, tmp, prefixes)
        if not version:
            number = int(theirs.macros[version_macro])
            version = f"{number // 1000}.{number % 1000 // 10}"
            if api == "nvml":
                version = NVML_VERSIONS.get(number)
            if not version:
                raise Failure(f"nvml.h of major version {number}: say which with --nvml-version")
        for header in (ours, theirs):
            header.macros.pop(version_macro, None)
        known = Known(args.known, api, version)

        expressions, missing, covered = facts(ours, theirs)
        for_ours = [(key, expression) for key, expression, _ in expressions]
        for_theirs = [(key, expression) for key, _, expression in expressions]
        mine = run_facts(our_text, our_flags, for_ours, cc, tmp, "ours")
        other = run_facts(their_text, their_flags, for_theirs, cc, tmp, "theirs")

    problems, tolerated = [], 0

    def judge(listed, message):
        nonlocal tolerated
        if listed:
            tolerated += 1
        else:
            problems.append(message)

    for name in missing:
        listed = known.match(known.absent, name) or known.match(known.optional, name)
        judge(listed, f"not in theirs: {name}")
    for name in covered:  # no problem in itself, but an entry for it is not stale
        known.match(known.absent, name)
    for key, value in mine.items():
        if key.startswith("type ") and value != "1":
            problems.append(f"our own type is not what we read it to be: {key}")
        elif other[key] != value:
            values = "" if key.startswith("type ") else f": ours {value}, theirs {other[key]}"
            judge(known.match(known.differs, key), f"differs: {key}{values}")
    if args.complete:
        lacking = [name for name in sorted(theirs.names() - ours.names())
                   if STREAM_SUFFIX.sub("", name) not in ours.functions]
        for name in ours.records:
            lacking += [f"{name}.{p}" for p in record(theirs, name) if p not in ours.records[name]]
        for name in lacking:
            judge(known.match(known.omitted, name), f"not in ours: {name}")
    else:
        known.omitted.clear()
    problems += known.stale()

    for line in problems:
        print(f"{api} {version}: {line}")
    print(f"{api} {version}: {len(mine)} facts compared (ours: {len(ours.functions)} functions, "
          f"{len(ours.types())} types, {len(ours.constants) + len(ours.macros)} constants); "
          f"{tolerated} known differences, {len(problems)} problems")
    return not problems


def main():
    args = argparse.ArgumentParser(description="compare our ABI headers with NVIDIA's")
    args.add_argument("--ours", required=True, help="directory with cuda_abi.h and nvml_abi.h")
    args.add_argument("--cuda-include", help="directory with NVIDIA's cuda.h")
    args.add_argument("--nvml-include", help="directory with NVIDIA's nvml.h")
    args.add_argument("--nvml-version", help="CUDA version that nvml.h came with")
    args.add_argument("--complete", action="store_true", help="fail also on what only theirs has")
    args.add_argument("--known", default=os.path.join(HERE, "known-differences.txt"))
    args.add_argument("--cc", default="gcc")
    args = args.parse_args()
    if not (args.cuda_include or args.nvml_include):
        sys.exit("nothing to compare with: give --cuda-include or --nvml-include")
    good = True
    try:
        if args.cuda_include:
            good &= compare("cuda", args.cuda_include, None, args)
        if args.nvml_include:
            good &= compare("nvml", args.nvml_include, args.nvml_version, args)
    except Failure as failure:
        sys.exit(f"compare.py: {failure}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
