// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e_ui tests the dashboard in a headless Chromium, with berth up and with a crowd, a fake
// API server with nodes and pods in memory.
//
// To test a large crowd, run go test ./e2e_ui -run Crowd -crowd.nodes 5000 -crowd.pods 50000
// -crowd.for 30s -v
package e2e_ui
