// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package kcm builds upstream's kube-controller-manager, and returns the arguments with which tests
// and measurements run it as a separate process in comparisons with Berth's controllers. The
// command comes from the module required by test/go.mod, so nothing needs to be installed. Only
// node health and taint eviction run, as fast as possible: the default client-side limit of 20
// requests per second is raised to 10,000.
package kcm
