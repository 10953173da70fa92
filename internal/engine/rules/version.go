// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

// Kubernetes is the version that defines these rules, and the version of the API server and
// controllers run by berth-controlplane. It is the version of the libraries in go.mod, the source
// for the Makefile and the images: a test compares the two.
const Kubernetes = "v1.37.2"
