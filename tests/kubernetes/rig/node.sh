#!/bin/sh
# One node, in namespaces of its own for network, mounts and process ids: containerd, kubelet,
# kube-proxy, and kube-router's loop for network policies.
# node.sh FOLDER NAME ADDRESS PAUSE_TAR [IMAGE_TAR...]
set -eu
folder=$1 name=$2 address=$3
shift 3
export PATH="$PATH:/usr/sbin:/sbin"
# The kubelet sets these for the whole machine; here it finds them set already.
mkdir -p "$folder/sysctl"
for each in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file="$folder/sysctl/$(echo "${each%=*}" | tr / _)"
  echo "${each#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${each%=*}"
done
mkdir -p "$folder/kubelet" "$folder/pods" "$folder/containers" "$folder/cni-state"
mkdir -p /var/lib/kubelet /var/log/pods /var/log/containers
mount --bind "$folder/kubelet" /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
# A kubelet removes the logs of pods that it does not know.
mount --bind "$folder/pods" /var/log/pods
mount --bind "$folder/containers" /var/log/containers
mkdir -p /run/containerd /run/netns
mount -t tmpfs none /run/containerd
# The namespaces of pods end with the node.
mount -t tmpfs none /run/netns
containerd --config "$folder/containerd.toml" >>"$folder/containerd.log" 2>&1 &
socket=$folder/containerd.sock
until ctr -a "$socket" version >/dev/null 2>&1; do sleep 0.2; done
for image in "$@"; do
  ctr -a "$socket" -n k8s.io images import "$image" >>"$folder/import.log" 2>&1
done
# It ends until the kubelet has registered the node.
until "$BIN/kuberouter" "$KUBECONFIG" "$name" "$SERVICES" >>"$folder/kuberouter.log" 2>&1; do
  sleep 1
done &
"$BIN/kube-proxy" --config="$folder/proxy.yaml" >>"$folder/proxy.log" 2>&1 &
exec "$BIN/kubelet" --config="$folder/kubelet.yaml" --kubeconfig="$KUBECONFIG" \
  --hostname-override="$name" --node-ip="$address" --root-dir=/var/lib/kubelet \
  --cert-dir="$folder/pki" --node-labels="$LABELS" >>"$folder/kubelet.log" 2>&1
