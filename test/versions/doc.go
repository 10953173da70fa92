// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package versions runs Berth on the supported Kubernetes minor versions other than the version
// that it is built with. From the module proxy it builds kube-apiserver, kube-controller-manager
// and kube-scheduler of another minor, each release in a separate module, since the modules here
// are of a single minor version. Its tests start them with RBAC and certificates like real
// clusters, install Berth by its manifests, run its parts with the tokens of their ServiceAccounts,
// and print a table of promises by version.
//
// TestShadow runs Berth's shadows alongside the release's own scheduler and controllers, and
// verifies in the API server's audit log that they write nothing.
//
// Whole API servers are compiled: the tests are skipped unless versions are named. `make versions`
// names them.
//
//	go test ./versions -versions 1.34,1.35 -v -timeout 2h
package versions
