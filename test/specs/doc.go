// Package specs runs upstream's own end-to-end specs (k8s.io/kubernetes/test/e2e) against `berth
// up` with simulated nodes.
//
// The specs are upstream's, unchanged, and so is the framework that runs them; here are only the
// choice of them and the cluster. specs.txt says which are run and which cannot pass where no
// container really runs, each with its reason; docs/upstream-specs.md has the results. It is a
// module of its own for what the framework needs beside Kubernetes itself. `make specs` runs it: an
// hour and a half, most of it the waiting that the specs prescribe.
package specs
