#!/bin/sh
# The parts of Kubernetes that tests/kubernetes runs, into build/kubernetes/bin. All but CoreDNS are
# one module, so that they share what is compiled: 15 minutes of processor time, once.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${STRATA_KUBERNETES_BIN:-$root/build/kubernetes/bin}
kubernetes=v1.36.3 staging=v0.36.3 helm=v3.21.2 etcd=v3.6.8 coredns=v1.13.1
command -v go >/dev/null || { echo "kubernetes-parts: Go 1.26 or newer is missing" >&2; exit 1; }
export GOFLAGS="-mod=mod -buildvcs=false"
mkdir -p "$target" "$root/build/kubernetes/all" "$root/build/kubernetes/coredns"

# build PROGRAM PACKAGE
build() {
  [ -x "$target/$1" ] && return
  echo "Building $1 ..."
  go build -ldflags "$flags" -o "$target/$1" "$2"
}

cd "$root/build/kubernetes/all"
if [ ! -f go.mod ]; then
  {
    printf 'module strata.invalid/kubernetes\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$kubernetes"
    for each in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go \
      cloud-provider cluster-bootstrap code-generator component-base component-helpers \
      controller-manager cri-api cri-client cri-streaming csi-translation-lib \
      dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator \
      kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils \
      pod-security-admission sample-apiserver sample-cli-plugin sample-controller streaming; do
      printf '\tk8s.io/%s => k8s.io/%s %s\n' "$each" "$each" "$staging"
    done
    printf ')\n'
  } >go.mod.new
  mv go.mod.new go.mod
  go get "helm.sh/helm/v3@$helm" "go.etcd.io/etcd/server/v3@$etcd" "k8s.io/kubernetes@$kubernetes"
fi
version=k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=36"
flags="$flags -X helm.sh/helm/v3/internal/version.version=$helm"
build etcd go.etcd.io/etcd/server/v3
build kubectl k8s.io/kubernetes/cmd/kubectl
build helm helm.sh/helm/v3/cmd/helm
for each in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
  build "$each" "k8s.io/kubernetes/cmd/$each"
done

cd "$root/build/kubernetes/coredns"
flags="-s -w"
[ -f go.mod ] || { go mod init strata.invalid/coredns; go get "github.com/coredns/coredns@$coredns"; }
build coredns github.com/coredns/coredns
