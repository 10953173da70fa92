// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package kcm runs upstream's kube-controller-manager as a process of its own, for tests and
// measurements that put Berth's controllers beside the ones that they replace. It builds upstream's
// own command from the module that test/go.mod names, so nothing has to be installed, and starts it
// with node health and taint eviction alone, as fast as they will go: the client-side limit of 20
// requests per second, kube-controller-manager's default, is lifted.
package kcm
