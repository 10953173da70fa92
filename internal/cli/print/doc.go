// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package print writes the secondary output of commands: progress, notices, and whether a condition
// of --fail-on holds.
package print
