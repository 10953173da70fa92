// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheduler implements the command `berth scheduler`: a scheduler that replaces
// kube-scheduler or runs alongside it, with its configuration files, flags, endpoints, metrics and
// leader election.
//
// Plugins written against k8s.io/kube-scheduler/framework are compiled in as with kube-scheduler: a
// main that calls [NewCommand] with one [WithPlugin] each. The scheduling itself is in
// internal/scheduler/runner, the plugin adapters in internal/scheduler/outoftree; this package
// handles the inputs, their sources, and the time at which changes take effect.
package scheduler
