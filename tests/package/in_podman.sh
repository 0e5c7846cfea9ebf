# shellcheck shell=bash
# What `ci/test install` does with the .deb and podman: bash tests/package/in_podman.sh ROOT FILES, as root and with mounts of one's own.
# ROOT is what the containers see, FILES the unpacked .deb. It prints what is wrong, and nothing else.

set -euo pipefail
root=$1 files=$2
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/cdi /run/slices /run/sim /run/podman
mkdir -m 1777 /run/ration
mkdir -m 1777 /run/ration/held
# As the package has it, but for where that was unpacked.
sed "s|\"hostPath\": \"/usr/|\"hostPath\": \"$files/usr/|" "$files/etc/cdi/ration.json" >/run/cdi/ration.json
unset "${!RATION_@}" LD_PRELOAD

in_container() {
    podman --root /run/podman/storage --runroot /run/podman/run --cgroup-manager=cgroupfs --events-backend=file --runtime runc run --rm \
        --network none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 -v /run/sim:/sim \
        -e RATION_SIM_DIR=/sim -e LD_LIBRARY_PATH=/opt "$@" 2>&1 || echo "exit $?"
}
holds() {
    local what=$1 said
    shift
    said=$(in_container "$@" --rootfs "$root:O" /opt/hold)
    [[ $said == *"$HELD" ]] || echo "$what: $said"
}

holds "on" --device ration.dev/slice=on -e RATION_NAME=train -e RATION_MEMORY=1GiB
[[ -d /run/ration/0-train ]] || echo "on: it did not meet others: $(ls -l /run/ration)"
holds "on, as a user" --user 1000 --device ration.dev/slice=on -e RATION_NAME=train -e RATION_MEMORY=1GiB
[[ -d /run/ration/1000-train ]] || echo "on, as a user: it did not meet others: $(ls -l /run/ration)"

printf '%s\n' 'memory = 1GiB' 'compute = 30%' 'name = held' 'dir = /run/ration' 'own_dir = /run/ration-own' 'strict = 1' >/run/slices/held
by_file=(--device ration.dev/slice=held -v /run/slices/held:/etc/ration/quota:ro -v /run/ration/held:/run/ration-own)
holds "held" "${by_file[@]}" -e RATION_MEMORY=4GiB -e LD_PRELOAD=
holds "held, as a user" --user 1000 "${by_file[@]}"
[[ -n $(ls /run/ration/held) ]] || echo "held: it has nothing in its directory"
# shellcheck disable=SC2016
said=$(in_container "${by_file[@]}" --rootfs "$root:O" /bin/sh -c 'for file in /run/ration/0-train/x /etc/ration/quota /etc/ld.so.preload; do
    if (: >>"$file"); then echo "$file can be written to"; fi; done 2>/dev/null')
[[ -z $said ]] || echo "held: $said"
umount -l /run/podman 2>/dev/null || true
