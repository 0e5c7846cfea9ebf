# shellcheck shell=bash
# Shared by the scripts in ci/: sourced by them, never run.
#
# After sourcing, the working directory is the root of the checkout, what ci/setup found is in the environment, and
# these are set:
#   ROOT    the checkout
#   CACHE   what ci/setup fetched (removing it is always safe)
#   TARGET  cargo's target directory; DEV is the development build in it, SIM the simulated driver's libraries
#   LOCKED  arguments for cargo: in CI the committed Cargo.lock is the only one that counts

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT" || exit 1
CACHE=$ROOT/.cache
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
DEV=$TARGET/debug
SIM=$TARGET/sim
LOCKED=()
# shellcheck disable=SC2034 # used by the scripts that source this
if [[ ${CI:-} == true ]]; then
    LOCKED=(--locked)
    export CARGO_INCREMENTAL=0 # what the next build could take up again is most of the disk, and here there is no next one
fi
export ROOT CACHE TARGET DEV SIM
export PATH=$CACHE/bin:$PATH

if [[ -f $CACHE/env.sh ]]; then
    # shellcheck source=/dev/null
    . "$CACHE/env.sh"
fi

if [[ -t 1 ]]; then
    BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
    BOLD='' RED='' GREEN='' PLAIN=''
fi
export BOLD RED GREEN PLAIN

# What a person should notice among the output of other programs.
say() { printf '%s\n' "${BOLD}$*${PLAIN}"; }

# The end of the line: what went wrong, and what to do about it.
die() {
    printf '%s\n' "${RED}$*${PLAIN}" >&2
    exit 1
}

# The comment at the top of a script is its manual. Prints it when the first argument asks for help.
help_wanted() {
    case ${1:-} in
    -h | --help)
        sed -n '2,/^$/ { s/^# \{0,1\}//p }' "$0"
        exit 0
        ;;
    esac
}

# Ends the script with its manual: for arguments it does not know.
usage_error() {
    printf '%s\n\n' "${RED}$(basename "$0"): $*${PLAIN}" >&2
    sed -n '2,/^$/ { s/^# \{0,1\}//p }' "$0" >&2
    exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# room GIB WHAT: ends the script unless the checkout's disk has so much left. A disk that fills up on the way fails in a
# hundred places, none of which says so.
room() {
    local free
    free=$(df --output=avail -k "$ROOT" | tail -n 1)
    ((free >= $1 * 1024 * 1024)) ||
        die "$2 needs about $1 GiB of disk; where this checkout is, $((free / 1024)) MiB are free. Make room, or put the" \
            "checkout on another disk."
}
