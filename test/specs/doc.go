// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package specs runs upstream's own end-to-end specs (k8s.io/kubernetes/test/e2e) against `berth
// up` with simulated nodes.
//
// The specs and their framework are upstream's, unchanged. This package only selects specs and
// starts the cluster. specs.txt lists the specs to run, and the specs that cannot pass without real
// containers, each with its reason. docs/evidence/upstream-specs.md has the results. The package is
// a separate module because of the framework's additional dependencies. `make specs` takes an hour
// and a half, mostly because the specs wait.
//
// With -berth-agent, the package runs the specs of node.txt with real containers, on the node of
// `berth up --agent`. `make node-conformance` runs it this way. It builds the images itself and
// serves them to containerd as a mirror of the specs' registry, so that nothing is downloaded.
package specs
