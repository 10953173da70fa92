// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package stage provides the environment for tests and pictures of the dashboard: a browser, a
// cluster of berth up, and a crowd. A crowd is a fake API server with up to thousands of nodes and
// tens of thousands of pods in memory. It accepts names that a real API server would reject.
package stage
