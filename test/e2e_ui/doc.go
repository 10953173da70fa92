// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e_ui tests the page in a headless Chromium, against berth up and against a crowd of
// nodes and pods in memory.
//
// The long form of the crowd: go test ./e2e_ui -run Crowd -crowd.nodes 5000 -crowd.pods 50000
// -crowd.for 30s -v
package e2e_ui
