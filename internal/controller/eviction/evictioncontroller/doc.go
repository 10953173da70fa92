// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictioncontroller runs an eviction.Core against an API server: watches feed the Core,
// one goroutine owns it, and each request runs on a goroutine of its own, with a bounded number in
// flight. The package provides the metrics and events of kube-controller-manager's
// taint-eviction-controller.
package evictioncontroller
