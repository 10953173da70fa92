#!/bin/sh
# Copyright The Berth Authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds Kueue and berth-kueue for test/cmd/kueuebench, and copies their manifests:
#
#	kueue.sh DIR
#
# DIR then has kueue, kueue-crds, kueue-webhooks.yaml, berth-kueue and berth-kueue.yaml.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/../integrations"
export CGO_ENABLED=0
go build -ldflags '-s -w' -o "$out/" ./cmd/berth-kueue
cp -f deploy/kueue/kueue-rbac.yaml "$out/berth-kueue.yaml"
version=$(go list -m -f '{{.Version}}' sigs.k8s.io/kueue)
from=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config/components
mkdir -p "$out/kueue-crds"
cp -f "$from"/crd/bases/*.yaml "$out/kueue-crds"
sed 1d "$from/webhook/manifests.yaml" > "$out/kueue-webhooks.yaml"
[ ! -x "$out/kueue" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS='-mod=mod -buildvcs=false -trimpath'
printf 'module peers\ngo 1.26.0\n' > go.mod
go get "sigs.k8s.io/kueue/cmd/kueue@$version"
go build -ldflags '-s -w' -o "$out/kueue" sigs.k8s.io/kueue/cmd/kueue
