// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package localcluster assembles the processes started by berth up and their flags: a control
// plane, the scheduler and the controllers, the dashboard, simulated nodes and, on request, this
// machine as a node.
package localcluster
