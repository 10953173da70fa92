// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2eadmission tests the admission rules on real API servers: the same cases through every
// path by which pods are admitted (ways_test.go, testdata/cases.txt), the examples of Kubernetes'
// documentation with stock kubectl, the effects of webhook failures on a cluster, and the cost of
// the rules.
package e2eadmission
