// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package stage provides the environment of the page's tests and pictures: a browser, a cluster of
// berth up, and a crowd, an in-memory API server with thousands of nodes and tens of thousands of
// pods, including names that a real one would reject.
package stage
