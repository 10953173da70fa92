// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package specs runs upstream's own end-to-end specs (k8s.io/kubernetes/test/e2e) against `berth
// up` with simulated nodes.
//
// The specs and their framework are upstream's, unchanged; this package contains only their
// selection and the cluster. specs.txt lists the specs to run and the specs that cannot pass
// without real containers, each with its reason; docs/evidence/upstream-specs.md has the results.
// It is a separate module because of the framework's additional dependencies. `make specs` runs it:
// an hour and a half, most of it waits in the specs.
//
// With -berth-agent it runs the specs of node.txt, on the node of `berth up --agent`, with real
// containers: `make node-conformance`. The images are built here, and served to containerd as a
// mirror of the specs' registry, without external downloads.
package specs
