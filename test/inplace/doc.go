// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package inplace puts Berth in the place of kube-scheduler and of kube-controller-manager's node
// controllers in whatever program imports it and is built with the patches of package patch:
// upstream's own integration tests and its scheduler_perf.
//
// BERTH_INPLACE=no in the environment runs upstream's own code, for comparison.
package inplace
