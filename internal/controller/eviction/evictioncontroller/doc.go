// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictioncontroller runs an eviction.Core against an API server: watches feed it, one
// goroutine owns it, and each of its requests is a goroutine that ends with the response, up to a
// bounded number in flight. It has the metrics and events of kube-controller-manager's
// taint-eviction-controller.
package evictioncontroller
