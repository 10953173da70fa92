package rules

// Kubernetes is the version whose rules these are, and whose API server and controllers
// berth-controlplane runs. It is the version of the libraries in go.mod, from which the Makefile
// and the images take it: a test compares the two.
const Kubernetes = "v1.37.2"
