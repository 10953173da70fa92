// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package configparity holds Berth's reading of configuration files against kube-scheduler's own:
// the same file goes through the loader, the validation and the framework of k8s.io/kubernetes
// v1.37 and through package config of Berth. Both must refuse it, or both must come to the same
// profiles with the same plugins in the same order at every extension point, the same weights and
// the same arguments.
//
// The files come from internal/engine/config/testdata, with the examples of the documentation
// and every legacy translation, and -files random ones.
package configparity
