// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package versions runs Berth on the supported Kubernetes minor versions other than the version
// that it is built with. It builds kube-apiserver, kube-controller-manager and kube-scheduler of a
// release from the module proxy. Each release is built in a separate module, because this module
// requires a single minor version. The tests start these programs with RBAC and certificates, as in
// real clusters, install Berth by its manifests, run Berth's components with the tokens of their
// ServiceAccounts, and print a table of promises by version.
//
// TestShadow runs Berth's shadows alongside the release's scheduler and controllers, and verifies
// by the API server's audit log that they write nothing.
//
// Because whole API servers must be compiled, the tests are skipped unless versions are named, as
// by `make versions`:
//
//	go test ./versions -versions 1.34,1.35 -v -timeout 2h
package versions
