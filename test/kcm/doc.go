// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package kcm runs upstream's kube-controller-manager as a separate process, for tests and
// measurements that compare Berth's controllers with it. It builds upstream's own command from the
// module that test/go.mod names, so nothing must be installed, and starts it with node health and
// taint eviction alone, as fast as possible: the client-side limit of 20 requests per second,
// kube-controller-manager's default, is lifted.
package kcm
