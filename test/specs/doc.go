// Package specs runs upstream's own end-to-end specs (k8s.io/kubernetes/test/e2e) against `berth
// up` with simulated nodes.
//
// The specs are upstream's, unchanged, and so is the framework that runs them; here are only the
// choice of them and the cluster. specs.txt says which are run and which cannot pass where no
// container really runs, each with its reason; docs/upstream-specs.md has the results. It is a
// module of its own for what the framework needs beside Kubernetes itself. `make specs` runs it: an
// hour and a half, most of it the waiting that the specs prescribe.
//
// With -berth-agent they are the specs of node.txt, on the node of `berth up --agent`, where
// containers really run: `make node-conformance`. The images are made here, and served to
// containerd as a mirror of the registry that the specs name; nothing is pulled from outside.
package specs
