#!/bin/sh
# The parts of Kubernetes that tests/kubernetes runs, into build/kubernetes/bin, and the definitions of
# operators' kinds, into build/kubernetes/definitions. All programs of Kubernetes are one module, so
# that they share what is compiled: 15 minutes of processor time, once.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${STRATA_KUBERNETES_BIN:-$root/build/kubernetes/bin}
kubernetes=v1.36.3 staging=v0.36.3 helm=v3.21.2 etcd=v3.6.8 coredns=v1.13.1
certmanager=v1.20.2 kuberouter=v2.1.0 keda=v2.21.0 prometheus_operator=v0.85.0
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

# loop NAME MODULE@VERSION: one of tests/kubernetes/programs. It has the versions of the module above,
# also of what it would have newer, so that it shares what is compiled.
loop() {
  [ -x "$target/$1" ] && return
  mkdir -p "$root/build/kubernetes/$1"
  cd "$root/build/kubernetes/$1"
  cp "$root/tests/kubernetes/programs/$1/main.go" ../all/go.mod ../all/go.sum .
  for each in antlr4-go/antlr/v4@v4.13.0 go-openapi/jsonpointer@v0.21.0 \
    go-openapi/jsonreference@v0.20.2 go-openapi/swag@v0.23.0 google/gnostic-models@v0.7.0 \
    mailru/easyjson@v0.7.7 stoewer/go-strcase@v1.3.0; do
    go mod edit -replace "github.com/${each%@*}=github.com/$each"
  done
  go get "$2"
  build "$1" .
}
loop kuberouter "github.com/cloudnativelabs/kube-router/v2@$kuberouter"
loop certmanager "github.com/cert-manager/cert-manager@$certmanager"

# definitions MODULE@VERSION FOLDER PREFIX...: files of a module that begin so.
definitions=$(dirname "$target")/definitions
mkdir -p "$definitions"
definitions() {
  folder=$(go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/$2
  shift 2
  for each in "$@"; do
    [ -f "$definitions/$each.yaml" ] || install -m 644 "$folder/$each.yaml" "$definitions/"
  done
}
cd "$definitions"
definitions "github.com/cert-manager/cert-manager@$certmanager" deploy/crds \
  cert-manager.io_certificates cert-manager.io_certificaterequests cert-manager.io_issuers \
  cert-manager.io_clusterissuers acme.cert-manager.io_challenges acme.cert-manager.io_orders
definitions "github.com/kedacore/keda/v2@$keda" config/crd/bases keda.sh_scaledobjects
definitions "github.com/prometheus-operator/prometheus-operator@$prometheus_operator" \
  example/prometheus-operator-crd monitoring.coreos.com_servicemonitors \
  monitoring.coreos.com_prometheusrules
