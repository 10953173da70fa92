// Package versions runs Berth on the Kubernetes minors that it is made for but not built of. Out of
// the module proxy it builds kube-apiserver, kube-controller-manager and kube-scheduler of another
// minor, each release in a module of its own, for the modules here are of one minor only. Its tests
// start them with RBAC and certificates as clusters have them, install Berth by its manifests, run
// its parts with the tokens of their own ServiceAccounts, and print a table of what holds on which
// version.
//
// TestShadow runs Berth's shadows beside the release's own scheduler and controllers, and holds the
// API server's audit log against the promise that they write nothing.
//
// Whole API servers are compiled: the tests are skipped unless versions are named. `make versions`
// names them.
//
//	go test ./versions -versions 1.34,1.35 -v -timeout 2h
package versions
