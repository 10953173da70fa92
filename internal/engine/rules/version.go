// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

// Kubernetes is the version that defines these rules, and the version of the API server and
// controllers run by berth-controlplane. It must equal the version of the libraries in go.mod, from
// which the Makefile takes the version. A test verifies this.
const Kubernetes = "v1.37.2"
