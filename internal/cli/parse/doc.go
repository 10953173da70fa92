// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package parse parses command-line references: kinds and names of objects, and the operations of
// what-if. It reports mistakes as usage errors.
package parse
