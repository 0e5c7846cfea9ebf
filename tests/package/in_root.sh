# shellcheck shell=bash
# What `ci/test install` does with the .deb in a root of its own: bash tests/package/in_root.sh ROOT DEB, with mounts of one's own and
# as root, if only in a user namespace. It prints what is wrong, and nothing else.

set -euo pipefail
root=$1 deb=$2
mount -t tmpfs -o mode=755 none "$root/run"
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
mount --rbind /proc "$root/proc"
mount --bind /dev/null "$root/dev/null"

# In a user namespace of a user's own there is one user alone, who may become no other.
one=(chroot "$root") two=(chroot "$root") who="who runs it"
if [[ $(awk '{ print $3 }' /proc/self/uid_map) -gt 65536 ]]; then
    one=(chroot --userspec=1000:1000 "$root") two=(chroot --userspec=1001:1001 "$root") who="another user"
fi
export LD_LIBRARY_PATH=/opt RATION_SIM_DIR=/dev/shm/sim PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset XDG_RUNTIME_DIR
installing() { env -u LD_LIBRARY_PATH dpkg --root="$root" --log=/dev/null "$@" >"$root.log" 2>&1 || { echo "dpkg $*:" && cat "$root.log"; }; }
files() { find "$root" -path "$root/proc" -prune -o -path "$root/var/lib/dpkg" -prune -o -path "$root/dev/shm" -prune -o -print | sort; }

before=$(files)
installing --install "$deb"
[[ $(stat -c '%a %u %g' "$root/run/ration") == "1777 0 0" ]] || echo "/run/ration: $(stat -c '%a %u %g' "$root/run/ration" 2>&1)"
env -u LD_LIBRARY_PATH dpkg --root="$root" --verify ration
for file in man/man1/ration-run.1.gz bash-completion/completions/ration doc/ration/copyright; do
    [[ -s $root/usr/share/$file ]] || echo "there is no $file"
done

said=$("${one[@]}" ration run --quiet --memory 1GiB -- /opt/hold 2>&1) || said+=", exit $?"
[[ $said == "$HELD" ]] || echo "the program in a slice said: $said"

"${one[@]}" ration run --quiet --name train --memory 1GiB --compute 30% -- /opt/hold stays >"$root.out" 2>&1 &
run=$!
trap 'kill "$run" 2>/dev/null || true' EXIT
seen() { "${two[@]}" ration status --json 2>/dev/null | grep -q '"name": "train"'; }
for _ in {1..100}; do
    if seen; then break; fi
    sleep 0.1
done
seen || echo "$who does not see what runs: $("${two[@]}" ration status 2>&1) $(cat "$root.out")"
installing --install "$deb"
seen || echo "what ran is gone after the package was installed again"
installing --remove ration
[[ -d $root/run/ration ]] || echo "/run/ration went while a program used it"
kill "$run" 2>/dev/null || echo "what ran ended when the package was removed"
wait "$run" || [[ $? == 143 ]] || echo "what ran ended with $?"
installing --purge ration
left=$(diff <(echo "$before") <(files) || true)
[[ -z $left ]] || echo "left, or gone: $left"
