// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

// Kubernetes is the version that defines these rules, and the version of the API server and
// controllers run by berth-controlplane. It must equal the version of the libraries in go.mod,
// which the Makefile and the images use: a test compares both.
const Kubernetes = "v1.37.2"
