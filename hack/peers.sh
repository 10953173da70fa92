#!/bin/sh
# Copyright The Berth Authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds the programs of other projects that test/cmd/guardbench runs, and copies their manifests:
#
#	peers.sh DIR
#
# DIR then has karpenter and karpenter-crds, kwok and kwok-stages.yaml, and descheduler. On kwok's
# nodes, a pod is ready after 3 s, and ends after 2 s.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS='-mod=mod -buildvcs=false -trimpath'

# build PROGRAM PACKAGE MODULE... builds a package of the first module.
build() {
	program=$1 package=$2
	shift 2
	[ -x "$out/$program" ] || go get "$@"
	[ -x "$out/$program" ] || go build -ldflags '-s -w' -o "$out/$program" "$package"
}

mkdir "$work/karpenter" "$work/kwok" "$work/descheduler"
cd "$work/karpenter"
printf 'module peers\ngo 1.26.5\n' > go.mod
build karpenter sigs.k8s.io/karpenter/kwok sigs.k8s.io/karpenter/kwok@v1.14.1
from=$(go mod download -json sigs.k8s.io/karpenter@v1.14.1 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
mkdir -p "$out/karpenter-crds"
cp -f "$from"/pkg/apis/crds/*.yaml "$from"/kwok/apis/crds/*.yaml "$out/karpenter-crds"

cd "$work/kwok"
printf 'module peers\ngo 1.26.0\n' > go.mod
build kwok sigs.k8s.io/kwok/cmd/kwok sigs.k8s.io/kwok/cmd/kwok@v0.8.0 \
	k8s.io/api@v0.37.2 k8s.io/apimachinery@v0.37.2 k8s.io/client-go@v0.37.2
from=$(go mod download -json sigs.k8s.io/kwok@v0.8.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/kustomize/stage
{
	cat "$from/node/fast/node-initialize.yaml"
	echo ---
	cat "$from/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml"
	echo ---
	sed 's/^  next:/  delay: {durationMilliseconds: 3000}\n  next:/' "$from/pod/fast/pod-ready.yaml"
	echo ---
	sed 's/^  next:/  delay: {durationMilliseconds: 2000}\n  next:/' "$from/pod/fast/pod-delete.yaml"
} > "$out/kwok-stages.yaml"

cd "$work/descheduler"
printf 'module peers\ngo 1.26.5\nreplace k8s.io/kube-openapi => k8s.io/kube-openapi v0.0.0-20260512234627-ef417d054102\n' > go.mod
build descheduler sigs.k8s.io/descheduler/cmd/descheduler sigs.k8s.io/descheduler/cmd/descheduler@v0.36.0
